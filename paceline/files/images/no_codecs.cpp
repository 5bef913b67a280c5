#include "paceline/engine/core/check.h"
#include "paceline/files/images/encoded_image.h"

namespace paceline::images {

std::unique_ptr<Codec> open_jpeg(std::span<const std::byte> /*bytes*/, const std::string& name) {
  fail(ErrorCode::kUnsupported, "{}: this build cannot decode images: {}", name,
       PACELINE_NO_IMAGES);
}

std::unique_ptr<Codec> open_png(std::span<const std::byte> bytes, const std::string& name) {
  return open_jpeg(bytes, name);
}

}  // namespace paceline::images
