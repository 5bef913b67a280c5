#pragma once

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

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "paceline/files/images/codec.h"
#include "paceline/files/images/exif.h"
#include "paceline/files/images/image.h"

namespace paceline::images {

struct DecodeOptions {
  std::int64_t max_pixels = 178'956'970;      // above which Pillow refuses, too
  std::int64_t max_file_bytes = 256LL << 20;  // of a file, see image_file.h
  bool exif_transpose = true;  // turn as EXIF or XMP says; torchvision's ImageFolder does not
};

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
