#pragma once

// The size of an image.
//
// Thread safety: a value.

namespace paceline::images {

// A size in pixels.
struct Size {
  int width = 0, height = 0;
  bool operator==(const Size&) const = default;
};

}  // namespace paceline::images
