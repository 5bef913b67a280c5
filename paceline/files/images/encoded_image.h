#pragma once

// A JPEG or PNG in memory: its kind, its size, its orientation, and decoding all of it or a part.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "paceline/files/images/image.h"

namespace paceline::images {

// The tag Orientation of EXIF data, with or without the word "Exif" before its TIFF header: 1 to 8,
// and 1 for a value that means nothing. Nothing for data without the tag or not in order.
std::optional<int> orientation_of(std::span<const std::byte> exif);

// How a stored image is turned upright: columns and rows are swapped first, then mirrored.
struct Transposition {
  bool swaps = false, mirrors_x = false, mirrors_y = false;  // x, y: of the stored image
};
Transposition transposition_of(int orientation);

// The size of a stored image as it is shown, and the other way round.
Size transposed(Size size, const Transposition& transposition);
// The region of the stored image, of size `stored`, that is shown as `shown`.
Region stored_region(const Region& shown, Size stored, const Transposition& transposition);
// A part of the stored image as it is shown.
Image transposed(Image stored, const Transposition& transposition);

// What a library of one format does for EncodedImage. jpeg_codec.cpp and png_codec.cpp are built
// where libjpeg-turbo and libpng were found, no_codecs.cpp where not.
//
// Both libraries report an error by a jump out of themselves. Each call of theirs is therefore
// inside a function whose locals need no destructor, and the exception is thrown after the jump has
// landed.
//
// Thread safety: none.
class Codec {
 public:
  virtual ~Codec() = default;
  // The size as the file stores it, before its orientation.
  virtual Size size() const = 0;
  virtual int orientation() const = 0;  // 1 to 8, as EXIF numbers them
  // The library can decode to 1/2, 1/4 and 1/8 of the size.
  virtual bool can_reduce() const = 0;
  // A part of the image of 1/reduction of the size, rounded up. Requires: the region is inside.
  virtual Image read(const Region& region, int reduction) = 0;
};

// Parse the header. `bytes` must outlive the codec; `name` is for messages. Error(kCorrupt).
std::unique_ptr<Codec> open_jpeg(std::span<const std::byte> bytes, const std::string& name);
std::unique_ptr<Codec> open_png(std::span<const std::byte> bytes, const std::string& name);

// The orientation of a PNG, from all places that Pillow (9.4 to 11.1) looks at, before and behind
// the pixels:
//
//   EXIF data   the chunk eXIf or a tEXt chunk "exif", the last of them in the file; without both,
//               ImageMagick's text "Raw profile type exif", EXIF data in hexadecimal digits
//   XMP         the text "XML:com.adobe.xmp", where EXIF data has no orientation
//
// A text is a chunk tEXt, zTXt or iTXt, packed or not. The result is 1 to 8; 1 where no place has
// an orientation. A damaged chunk is ignored, and so is a text that unpacks to more than 1 MiB.
// `file` is all of the file. Thread safety: pure function.
int png_orientation(std::span<const std::byte> file);

struct DecodeOptions {
  std::int64_t max_pixels = 178'956'970;      // above which Pillow refuses, too
  std::int64_t max_file_bytes = 256LL << 20;  // of a file, see image_files.h
  bool exif_transpose = true;  // turn as EXIF or XMP says; torchvision's ImageFolder does not
};

// A JPEG or PNG in memory, decoded as a whole or in part.
//
// The result is what Pillow gives for ImageOps.exif_transpose(image).convert("RGB"), byte for byte:
// grey and palettes become colours, alpha is dropped, CMYK is converted as Pillow does. One
// exception: of 16 bits of grey the upper byte is taken, as of 16 bits of colour; Pillow clips them
// at 255 instead, which makes most such images white.
//
// The kind is told by the content, whatever the name. Sizes are checked before anything of that
// size is allocated. Damaged data is an error: a JPEG that ends early, codes that do not exist; so
// is a wrong checksum of a PNG. A decoder stops behind the last row of the region, so damage below
// it is not seen. Nothing is printed.
//
// Thread safety: none; each thread decodes its own.
class EncodedImage {
 public:
  // Parses the header. `bytes` must outlive this; `name` is for messages. Error(kCorrupt): neither
  // kind, or damaged; kInvalid: above a limit; kUnsupported: this build has no decoders.
  EncodedImage(std::span<const std::byte> bytes, const std::string& name,
               const DecodeOptions& options = {});

  Size size() const { return transposed(codec_->size(), transposition_); }  // as shown
  // Reductions of 2, 4 and 8 are possible: JPEG's, by smaller transforms.
  bool can_reduce() const { return codec_->can_reduce(); }
  Size reduced_size(int reduction) const;

  // Error(kCorrupt) with the library's reason.
  Image decode();
  // A region of the reduced image; only what it takes is decoded. Its pixels are those of the
  // whole. Requires: reduction is 1, or 2, 4 or 8 where can_reduce(). Error(kInvalid) for a region
  // that is empty or not inside.
  Image decode(const Region& region, int reduction = 1);

 private:
  std::string name_;
  std::unique_ptr<Codec> codec_;
  Transposition transposition_;
};

}  // namespace paceline::images
