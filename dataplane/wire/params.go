package wire

import (
	"math"
	"strconv"
)

// Params is the object of transfer parameters (kv_transfer_params) that an owner answers and a reader gets.
type Params struct {
	DoRemotePrefill, DoRemoteDecode bool
	EngineID, RequestID, Host       string
	Port                            uint32
	TPSize, DCPSize, PPSize         uint32 // at least 1
	NumTokens                       uint32
	Groups                          [][]uint32 // remote_block_ids: logical block ids per transfer group
	ExpiryTime                      *float64   // remote_blocks_expiry_time, seconds of the owner's clock; nil: null
	RegistrationGeneration          uint64
	TransferMode                    string
	Lease                           ParamsLease // the kvlease key
	Native                          bool        // the kvlease key is there and of a version that we speak
}

// ParamsLease is the kvlease key of the parameters: which use of which slot the blocks are.
// Of a version that we do not speak only Version is set, and the parameters are treated as stock.
type ParamsLease struct {
	Version    uint32
	Epoch      uint64 // boot epoch of the owner, not 0
	Slot       uint32
	Generation uint32 // g: grants of the slot before this one
	Key        uint64
}

const (
	paramPrefill = iota
	paramDecode
	paramBlocks
	paramEngine
	paramRequest
	paramHost
	paramPort
	paramTP
	paramDCP
	paramPP
	paramTokens
	paramExpiry
	paramGeneration
	paramMode
	paramLease
	paramsN
)

var paramNames = [paramsN]string{
	"do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host",
	"remote_port", "tp_size", "dcp_size", "pp_size", "remote_num_tokens", "remote_blocks_expiry_time",
	"remote_registration_generation", "transfer_mode", "kvlease",
}

// paramsRequired are the keys without which nobody can read.
var paramsRequired = [...]int{paramBlocks, paramEngine, paramRequest, paramHost, paramPort}

const (
	plV = iota
	plEpoch
	plSlot
	plG
	plKey
	plN
)

var plNames = [plN]string{"v", "epoch", "slot", "g", "key"}

// AppendParams writes the object, keys in the order above, with no white space. Without Native the kvlease key is left out.
func AppendParams(dst []byte, p *Params) []byte {
	dst = append(dst, '{')
	for k := range paramsN {
		if k == paramLease && !p.Native {
			break
		}
		if k > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendJSONString(dst, paramNames[k]), ':')
		dst = p.appendValue(dst, k)
	}
	return append(dst, '}')
}

func (p *Params) appendValue(dst []byte, key int) []byte {
	switch key {
	case paramPrefill:
		return strconv.AppendBool(dst, p.DoRemotePrefill)
	case paramDecode:
		return strconv.AppendBool(dst, p.DoRemoteDecode)
	case paramBlocks:
		dst = append(dst, '[')
		for i, ids := range p.Groups {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendIDs(dst, ids)
		}
		return append(dst, ']')
	case paramEngine:
		return appendJSONString(dst, p.EngineID)
	case paramRequest:
		return appendJSONString(dst, p.RequestID)
	case paramHost:
		return appendJSONString(dst, p.Host)
	case paramPort:
		return strconv.AppendUint(dst, uint64(p.Port), 10)
	case paramTP:
		return strconv.AppendUint(dst, uint64(max(p.TPSize, 1)), 10)
	case paramDCP:
		return strconv.AppendUint(dst, uint64(max(p.DCPSize, 1)), 10)
	case paramPP:
		return strconv.AppendUint(dst, uint64(max(p.PPSize, 1)), 10)
	case paramTokens:
		return strconv.AppendUint(dst, uint64(p.NumTokens), 10)
	case paramExpiry:
		if p.ExpiryTime == nil || math.IsNaN(*p.ExpiryTime) || math.IsInf(*p.ExpiryTime, 0) { // JSON has neither
			return append(dst, "null"...)
		}
		return strconv.AppendFloat(dst, *p.ExpiryTime, 'g', -1, 64)
	case paramGeneration:
		return strconv.AppendUint(dst, p.RegistrationGeneration, 10)
	case paramMode:
		return appendJSONString(dst, p.TransferMode)
	}
	return AppendParamsLease(dst, &p.Lease)
}

func appendIDs(dst []byte, ids []uint32) []byte {
	dst = append(dst, '[')
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(id), 10)
	}
	return append(dst, ']')
}

// AppendParamsLease writes the value of the kvlease key. Epoch and key are 64 bits, which a consumer that holds JSON
// numbers as floats would round, so they are text: 16 lower-case hexadecimal digits.
func AppendParamsLease(dst []byte, l *ParamsLease) []byte {
	dst = strconv.AppendUint(append(dst, `{"v":`...), LeaseVersion, 10)
	dst = appendHex16(append(dst, `,"epoch":"`...), l.Epoch)
	dst = strconv.AppendUint(append(dst, `","slot":`...), uint64(l.Slot), 10)
	dst = strconv.AppendUint(append(dst, `,"g":`...), uint64(l.Generation), 10)
	dst = appendHex16(append(dst, `,"key":"`...), l.Key)
	return append(dst, `"}`...)
}

func appendHex16(dst []byte, v uint64) []byte {
	for shift := 60; shift >= 0; shift -= 4 {
		dst = append(dst, "0123456789abcdef"[v>>shift&15])
	}
	return dst
}
