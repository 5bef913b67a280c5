#include "paceline/files/images/encoded_image.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/file_start.h"

namespace paceline::images {
namespace {

constexpr std::string_view kJpeg = "\xff\xd8\xff", kPng = "\x89PNG\r\n\x1a\n";

bool begins_with(std::span<const std::byte> bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

std::unique_ptr<Codec> open(std::span<const std::byte> bytes, const std::string& name) {
  if (begins_with(bytes, kJpeg)) return open_jpeg(bytes, name);
  if (begins_with(bytes, kPng)) return open_png(bytes, name);
  if (bytes.empty()) fail(ErrorCode::kCorrupt, "{}: the file is empty", name);
  const std::string_view mistaken = mistaken_file(bytes);
  if (!mistaken.empty()) fail(ErrorCode::kCorrupt, "{}: {}", name, mistaken);
  std::string hex;
  for (const std::byte byte : bytes.first(std::min<std::size_t>(bytes.size(), 4)))
    hex += fmt::format(" {:02x}", static_cast<unsigned>(byte));
  fail(ErrorCode::kCorrupt, "{}: neither a JPEG nor a PNG: it begins with{}", name, hex);
}

}  // namespace

EncodedImage::EncodedImage(std::span<const std::byte> bytes, const std::string& name,
                           const DecodeOptions& options)
    : name_(name), codec_(open(bytes, name)) {
  const auto [width, height] = codec_->size();
  check(std::int64_t{width} * height <= options.max_pixels,
        "{}: {} x {} pixels are above the limit of {} (DecodeOptions::max_pixels)", name, width,
        height, options.max_pixels);
  if (options.exif_transpose) transposition_ = transposition_of(codec_->orientation());
}

Size EncodedImage::reduced_size(int reduction) const {
  const auto [width, height] = size();
  return {(width + reduction - 1) / reduction, (height + reduction - 1) / reduction};
}

Image EncodedImage::decode() {
  const auto [width, height] = size();
  return decode({0, 0, width, height});
}

Image EncodedImage::decode(const Region& region, int reduction) {
  check(reduction == 1 || (can_reduce() && (reduction == 2 || reduction == 4 || reduction == 8)),
        "{}: cannot be decoded to 1/{} of its size", name_, reduction);
  const Size shown = reduced_size(reduction);
  check(region.x >= 0 && region.y >= 0 && region.width > 0 && region.height > 0 &&
            region.width <= shown.width - region.x && region.height <= shown.height - region.y,
        "{}: the region of {} x {} at ({}, {}) is not in the {} x {} pixels", name_, region.width,
        region.height, region.x, region.y, shown.width, shown.height);
  const Region stored = stored_region(region, transposed(shown, transposition_), transposition_);
  return transposed(codec_->read(stored, reduction), transposition_);
}

}  // namespace paceline::images
