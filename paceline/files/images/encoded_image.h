#pragma once

// A JPEG or PNG in memory: its kind, its size and its orientation, and decoding the whole image or
// a part of it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "paceline/files/images/image.h"
#include "paceline/files/images/image_pipeline_options.h"

namespace paceline::images {

// The tag Orientation of EXIF data, with or without the word "Exif" before its TIFF header: 1 to 8,
// and 1 for an undefined value. nullopt for data without the tag and for malformed data.
std::optional<int> orientation_of(std::span<const std::byte> exif);

// How a stored image is turned upright. Mirrors x or y of the stored image, then swaps columns and
// rows.
struct Transposition {
  bool swaps = false, mirrors_x = false, mirrors_y = false;  // x and y of the stored image
};
Transposition transposition_of(int orientation);

// Converts the size of a stored image to the size as shown, and back.
Size transposed(Size size, const Transposition& transposition);
// The region of the stored image, of size `stored`, that is shown as `shown`.
Region stored_region(const Region& shown, Size stored, const Transposition& transposition);
// Turns a part of the stored image to the orientation in which it is shown.
Image transposed(Image stored, const Transposition& transposition);

// The interface through which EncodedImage uses the library of a format. jpeg_codec.cpp and
// png_codec.cpp are built if libjpeg-turbo and libpng were found, otherwise no_codecs.cpp.
//
// Both libraries report an error with longjmp(). So each call of a library is inside a function
// without locals that need a destructor, and the exception is thrown after the jump has landed.
//
// Thread safety: none.
class Codec {
 public:
  virtual ~Codec() = default;
  // The size as the file stores it, before the orientation is applied.
  virtual Size size() const = 0;
  virtual int orientation() const = 0;  // 1 to 8, as EXIF numbers them
  // Whether the library can decode to 1/2, 1/4 and 1/8 of the size.
  virtual bool can_reduce() const = 0;
  // Decodes a region of the image at 1/reduction of its size, rounded up. Requires: the region is
  // inside the reduced image.
  virtual Image read(const Region& region, int reduction) = 0;
};

// Parse the header. `bytes` must outlive the codec; `name` is for messages. They throw
// Error(kCorrupt).
std::unique_ptr<Codec> open_jpeg(std::span<const std::byte> bytes, const std::string& name);
std::unique_ptr<Codec> open_png(std::span<const std::byte> bytes, const std::string& name);

// The orientation of a PNG, from all places that Pillow (9.4 to 11.1) checks, before and after the
// pixels. A *text* is a chunk tEXt, zTXt or iTXt, compressed or not.
//
//   EXIF data   the chunk eXIf or a tEXt chunk "exif", whichever is last in the file; without
//               either, ImageMagick's text "Raw profile type exif", EXIF data in hexadecimal digits
//   XMP         the text "XML:com.adobe.xmp", if EXIF data has no orientation
//
// The result is 1 to 8; 1 if no place has an orientation. A damaged chunk is ignored, and so is a
// text that is longer than 1 MiB when decompressed. `file` is the whole file. Thread safety: a pure
// function.
int png_orientation(std::span<const std::byte> file);

// A JPEG or PNG in memory, which is decoded as a whole or in part.
//
// The result equals Pillow's ImageOps.exif_transpose(image).convert("RGB") byte for byte: grey and
// palettes become colours, alpha is dropped, CMYK is converted as Pillow does. There is one
// exception: 16-bit grey is reduced to its upper byte, like 16-bit colour; Pillow clips it at 255
// instead, which makes most such images white.
//
// The content determines the kind, whatever the name is. Sizes are checked before memory is
// allocated. Damaged data is an error: a JPEG that ends early, invalid codes, a wrong checksum in a
// PNG. A decoder stops after the last row of the region, so it does not notice damage below that
// row. Nothing is printed.
//
// Thread safety: none; each thread decodes images of its own.
class EncodedImage {
 public:
  // Parses the header. `bytes` must outlive this object; `name` is for messages. Throws
  // Error(kCorrupt) for damaged data and other kinds of files, kInvalid above a limit, and
  // kUnsupported if this build has no decoders.
  EncodedImage(std::span<const std::byte> bytes, const std::string& name,
               const DecodeOptions& options = {});

  Size size() const { return transposed(codec_->size(), transposition_); }  // as shown
  // Whether reductions by 2, 4 and 8 are possible, as for JPEG with its smaller transforms.
  bool can_reduce() const { return codec_->can_reduce(); }
  Size reduced_size(int reduction) const;

  // Decodes the whole image. Throws Error(kCorrupt) with the library's reason.
  Image decode();
  // Decodes a region of the reduced image, and little else. Its pixels equal those of the whole
  // image. Throws Error(kInvalid) for a region that is empty or not inside. Requires: reduction is
  // 1, or 2, 4 or 8 if can_reduce().
  Image decode(const Region& region, int reduction = 1);

 private:
  std::string name_;
  std::unique_ptr<Codec> codec_;
  Transposition transposition_;
};

}  // namespace paceline::images
