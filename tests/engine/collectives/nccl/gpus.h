#pragma once

// What a test with CUDA asks first. No GPU, no driver and too few GPUs are reasons to skip it.

#include <string>

namespace paceline {

// Why `wanted` GPUs cannot be used here; empty when they can.
std::string why_no_gpus(int wanted);

// Ends the test, by exception, with CUDA's text when a call of it has failed.
void require_cuda(int code, const char* what);

}  // namespace paceline
