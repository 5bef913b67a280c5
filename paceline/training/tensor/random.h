#pragma once

// Random numbers that belong to a rank. LibTorch's generator belongs to the process, so ranks that
// are threads of one process draw from the same generator, in an order that differs from run to
// run. After seed_rank() a thread has its own generator, which the functions below use: call
// seed_rank() first in every rank that is a thread and must draw the same numbers in every run. A
// DataLoader with logical shards calls it for each shard.

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace paceline {

// Seeds this thread's generator and LibTorch's, from which torch::nn::Dropout draws.
void seed_rank(std::uint64_t seed);

// torch::dropout on the CPU with numbers from rank_generator(): elements of `input` become 0 with
// probability `p`, the others are divided by 1 - p; outside of training it returns `input`. If
// ranks are threads, two runs drop the same elements only after seed_rank(). Error(kInvalid) unless
// 0 <= p < 1.
at::Tensor dropout(const at::Tensor& input, double p, bool is_training);

}  // namespace paceline
