#pragma once

// The orientation of a PNG, from all places that Pillow (9.4 to 11.1) looks at, before and behind
// the pixels:
//
//   EXIF data   the chunk eXIf or a tEXt chunk "exif", the last of them in the file; without both,
//               ImageMagick's text "Raw profile type exif", EXIF data in hexadecimal digits
//   XMP         the text "XML:com.adobe.xmp", where EXIF data has no orientation
//
// A text is a chunk tEXt, zTXt or iTXt, packed or not.
//
// Thread safety: pure function.

#include <cstddef>
#include <span>

namespace paceline::images {

// 1 to 8; 1 where no place has an orientation. A chunk that is damaged is ignored, and so is a text
// that unpacks to more than 1 MiB. `file`: all of it.
int png_orientation(std::span<const std::byte> file);

}  // namespace paceline::images
