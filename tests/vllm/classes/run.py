"""Runs all tests of this folder, or those that are named: run.py [test_sleep.Sleep ...]. KVLEASE_VLLM_PYTHON names a folder with another vLLM."""

import pathlib
import sys
import unittest

import stage

suite = unittest.TestSuite()
loader = unittest.TestLoader()
suite.addTests(loader.loadTestsFromNames(sys.argv[1:]) if sys.argv[1:] else loader.discover(str(pathlib.Path(__file__).parent)))
result = unittest.TextTestRunner(buffer=True).run(suite)
print(f"test-vllm-classes: vLLM {stage.VERSION}, {result.testsRun} tests: {'OK' if result.wasSuccessful() else 'FAILED'}")
sys.exit(not result.wasSuccessful())
