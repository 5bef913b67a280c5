#pragma once

// A JPEG or PNG in memory: finds its format, size and orientation, and decodes the whole image or a
// part of it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "paceline/files/images/image.h"
#include "paceline/files/images/image_pipeline_options.h"

namespace paceline::images {

// Returns the value of the tag Orientation in EXIF data, 1 to 8; an undefined value counts as 1.
// Returns nullopt for data without the tag and for malformed data. The data may begin with the word
// "Exif" or with the TIFF header.
std::optional<int> orientation_of(std::span<const std::byte> exif);

// How a stored image is turned upright: first it is mirrored in x, in y or in both, then its
// columns and rows are swapped, as the flags say.
struct Transposition {
  bool swaps = false, mirrors_x = false, mirrors_y = false;
};
// `orientation`: 1 to 8, as in EXIF data.
Transposition transposition_of(int orientation);

// Converts the size of a stored image to the size of the shown image, or the reverse.
Size transposed(Size size, const Transposition& transposition);
// Returns the region of a stored image that is shown as the region `shown`. `stored`: the size of
// the stored image.
Region stored_region(const Region& shown, Size stored, const Transposition& transposition);
// Turns a part of a stored image to the orientation in which the image is shown.
Image transposed(Image stored, const Transposition& transposition);

// Decodes one file with the library for its format. jpeg_codec.cpp and png_codec.cpp are built if
// libjpeg-turbo and libpng were found, otherwise no_codecs.cpp.
//
// Both libraries report an error with longjmp(). So a function that calls a library has no locals
// that need a destructor, and the exception is thrown after the jump, outside of that function.
//
// Thread safety: none.
class Codec {
 public:
  virtual ~Codec() = default;
  // The size as the file stores it, before the orientation is applied.
  virtual Size size() const = 0;
  virtual int orientation() const = 0;  // 1 to 8, as in EXIF data
  // Returns whether the library can decode to 1/2, 1/4 and 1/8 of the size.
  virtual bool can_reduce() const = 0;
  // Reduces the stored image to 1/`reduction` of its size, rounded up, and returns a region of the
  // reduced image. Requires: the region is inside the reduced image.
  virtual Image read(const Region& region, int reduction) = 0;
};

// Make the codec of a file and parse the file's header. `bytes`, the file, must outlive the codec;
// messages begin with `name`. Error(kCorrupt) if the header is damaged, and kUnsupported if this
// build has no decoders.
std::unique_ptr<Codec> open_jpeg(std::span<const std::byte> bytes, const std::string& name);
std::unique_ptr<Codec> open_png(std::span<const std::byte> bytes, const std::string& name);

// Returns the orientation of a PNG, 1 to 8. `file` is the whole file. Like Pillow (9.4 to 11.1),
// reads EXIF data and, if they have no orientation, XMP data, before and after the pixels:
//
//   EXIF data   the chunk eXIf or the chunk tEXt "exif", whichever is last in the file; if the file
//               has neither, ImageMagick's text "Raw profile type exif", in hexadecimal digits
//   XMP data    the text "XML:com.adobe.xmp"
//
// A text is a chunk tEXt, zTXt or iTXt, compressed or not. Damaged chunks are ignored, and so are
// texts that decompress to more than 1 MiB, or to more than 64 MiB together. If no chunk has an
// orientation, the result is 1. Thread safety: a pure function.
int png_orientation(std::span<const std::byte> file);

// A JPEG or PNG in memory, which is decoded as a whole or in part.
//
// The pixels equal those of Pillow's ImageOps.exif_transpose(image).convert("RGB") byte for byte:
// grey and palettes become colours, alpha is dropped, and CMYK is converted by Pillow's formula.
// The one exception is 16-bit grey: each value is reduced to its upper byte, like 16-bit colours,
// while Pillow clips it at 255, which makes most such images white.
//
// The content determines the format; the file's name does not matter. The size is checked before
// memory is allocated. Damaged data, such as a JPEG that ends early, an invalid code, or a wrong
// checksum in a PNG, is an error. A decoder may stop after the last row of the region; damage below
// that row is then not noticed. Nothing is printed.
//
// Thread safety: none; each thread decodes images of its own.
class EncodedImage {
 public:
  // Parses the header. `bytes` must outlive this object; messages begin with `name`.
  // Error(kCorrupt) if the header is damaged or the file is neither a JPEG nor a PNG, kInvalid if
  // the image exceeds a limit of `options`, and kUnsupported if this build has no decoders.
  EncodedImage(std::span<const std::byte> bytes, const std::string& name,
               const DecodeOptions& options = {});

  // The size of the shown image.
  Size size() const { return transposed(codec_->size(), transposition_); }
  // Returns whether the image can be decoded to 1/2, 1/4 and 1/8 of its size. Most JPEGs can: their
  // library has smaller transforms.
  bool can_reduce() const { return codec_->can_reduce(); }
  // Returns 1/`reduction` of size(), rounded up.
  Size reduced_size(int reduction) const;

  // Decodes the whole image. Error(kCorrupt), with the library's reason, if the data is damaged.
  Image decode();
  // Reduces the image to 1/`reduction` of its size and returns a region of the reduced image, with
  // the pixels that it has when the whole image is decoded. Usually faster than decode().
  // Error(kInvalid) if the region is empty or not inside the reduced image, or if `reduction` is
  // not 1 (nor 2, 4 or 8 if can_reduce()); kCorrupt as for decode().
  Image decode(const Region& region, int reduction = 1);

 private:
  std::string name_;
  std::unique_ptr<Codec> codec_;
  Transposition transposition_;
};

}  // namespace paceline::images
