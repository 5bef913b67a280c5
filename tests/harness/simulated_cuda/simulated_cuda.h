#pragma once

// Simulated CUDA devices, for tests on machines without a GPU. A program that is linked to the
// target paceline_simulated_cuda, or started with that library in LD_PRELOAD, has
// PACELINE_SIMULATED_CUDA_DEVICES (4) devices of type CUDA, although its LibTorch was built without
// CUDA. PACELINE_SIMULATED_CUDA_MEMORY limits the bytes of each.
//
//   streams    threads that carry out tasks in order, after random delays (streams.h)
//   memory     closed to the host, and overwritten when it is released (memory.h)
//   operators  LibTorch's CPU kernels on copies (operators.cpp)
//
// It shows accesses without the events that order them, waits of the host, reads of device memory
// by the host, memory that is released too early, mixed devices, and lack of memory. It does not
// show anything about speed, about kernels, or about NVIDIA's libraries.
//
// Threads that are ranks of one group need a device each: LibTorch has one thread for the backward
// passes of each device, and a rank that waits for another one in it would wait forever.

#include "tests/harness/simulated_cuda/memory.h"
#include "tests/harness/simulated_cuda/streams.h"
