#pragma once

// Checks that a test with CUDA makes first. It is skipped if there is no GPU, no driver or too few
// GPUs.

#include <string>

namespace paceline {

// The reason why `wanted` GPUs cannot be used here; empty when they can.
std::string why_no_gpus(int wanted);

// Throws an exception with CUDA's text, which ends the test, if `code` is an error of CUDA.
void require_cuda(int code, const char* what);

}  // namespace paceline
