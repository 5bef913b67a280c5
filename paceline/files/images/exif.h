#pragma once

// The one field of EXIF that changes what an image looks like.

#include <cstddef>
#include <optional>
#include <span>

#include "paceline/files/images/image.h"

namespace paceline::images {

// The tag Orientation of EXIF data, with or without the word "Exif" before its TIFF header: 1 to 8,
// and 1 for a value that means nothing. Nothing for data without the tag or not in order.
std::optional<int> orientation_of(std::span<const std::byte> exif);

// Where the pixels of an image that is shown upright lie in the stored one: the columns and rows
// are swapped first, then mirrored.
struct Transposition {
  bool swaps = false, mirrors_x = false, mirrors_y = false;  // x, y: of the stored image
};
Transposition transposition_of(int orientation);

// The size as shown, of a stored one, and the other way round.
Size transposed(Size size, const Transposition& transposition);
// The region of the stored image, of size `stored`, that is shown as `shown`.
Region stored_region(const Region& shown, Size stored, const Transposition& transposition);
// A part of the stored image as it is shown.
Image transposed(Image stored, const Transposition& transposition);

}  // namespace paceline::images
