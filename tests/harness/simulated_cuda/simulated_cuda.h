#pragma once

// Simulated CUDA devices, for tests on machines without a GPU. A program that is linked to the
// target paceline_simulated_cuda, or started with that library in LD_PRELOAD, has
// PACELINE_SIMULATED_CUDA_DEVICES (4) devices of type CUDA, although its LibTorch was built without
// CUDA. PACELINE_SIMULATED_CUDA_MEMORY limits the bytes of each.
//
//   streams    threads that carry out tasks in order, after random delays (streams.h)
//   memory     inaccessible to the host, and overwritten when it is released (memory.h)
//   operators  LibTorch's CPU kernels on copies (operators.cpp)
//
// Tests can find accesses that no event orders, waits of the host, reads of device memory by the
// host, memory that is released too early, mixed devices, and lack of memory. They show nothing
// about speed, kernels or NVIDIA's libraries.
//
// Ranks that are threads must not share a device: LibTorch runs all backward passes of a device in
// one thread, and a rank that waited there for another rank would wait forever.

#include "tests/harness/simulated_cuda/memory.h"
#include "tests/harness/simulated_cuda/streams.h"
