#pragma once

// A batch of an ImageDataset.
//
// Thread safety: a pure function.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/training/data/transform.h"

namespace paceline::data {

// Makes a batch of these samples: float32 [B, channels, height, width] and the labels, int64 [B].
// `load` writes the image of an index to `out` and returns its label.
std::vector<at::Tensor> make_image_batch(
    std::span<const std::int64_t> indices, const ImageShape& shape, bool channels_last,
    const std::function<std::int64_t(std::int64_t index, float* out)>& load);

}  // namespace paceline::data
