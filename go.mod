module github.com/kvlease/kvlease

go 1.26
