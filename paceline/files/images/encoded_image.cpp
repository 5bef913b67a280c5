#include "paceline/files/images/encoded_image.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/system/safe_files.h"

namespace paceline::images {

namespace {

constexpr std::size_t kEntryBytes = 12;
constexpr std::uint32_t kOrientation = 0x0112;
constexpr std::string_view kIntro("Exif\0\0", 6);

// The size in bytes of one value of an integer type; 0 for any other type.
std::size_t bytes_of_type(std::uint32_t type) {
  constexpr std::uint32_t kShort = 3, kLong = 4, kSignedByte = 6, kSignedShort = 8, kSignedLong = 9,
                          kDirectory = 13;
  switch (type) {
    case kSignedByte:
      return 1;
    case kShort:
    case kSignedShort:
      return 2;
    case kLong:
    case kSignedLong:
    case kDirectory:
      return 4;
    default:
      return 0;
  }
}

// Reads TIFF's numbers in either byte order; nullopt beyond the end.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, bool big_endian)
      : bytes_(bytes), big_endian_(big_endian) {}
  std::optional<std::uint32_t> number(std::size_t offset, std::size_t size) const {
    if (offset > bytes_.size() || size > bytes_.size() - offset) return std::nullopt;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t at = offset + (big_endian_ ? i : size - 1 - i);
      value = value << 8 | static_cast<std::uint32_t>(bytes_[at]);
    }
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  bool big_endian_;
};

}  // namespace

std::optional<int> orientation_of(std::span<const std::byte> exif) {
  std::span<const std::byte> tiff = exif;
  while (tiff.size() >= kIntro.size() &&
         std::memcmp(tiff.data(), kIntro.data(), kIntro.size()) == 0)
    tiff = tiff.subspan(kIntro.size());
  if (tiff.size() < 8 || tiff[0] != tiff[1]) return {};
  const bool big_endian = tiff[0] == std::byte{'M'};
  if (!big_endian && tiff[0] != std::byte{'I'}) return {};
  const Reader reader(tiff, big_endian);
  // After the byte-order mark, TIFF data has the number 42; some writers store it in the other byte
  // order.
  if (reader.number(2, 2) != 42 && reader.number(2, 2) != 42 << 8) return {};
  const std::size_t directory = *reader.number(4, 4);
  const auto count = reader.number(directory, 2);
  std::optional<int> found;
  for (std::size_t i = 0; count && i < *count; ++i) {
    const std::size_t entry = directory + 2 + i * kEntryBytes;
    const auto tag = reader.number(entry, 2), type = reader.number(entry + 2, 2);
    const auto values = reader.number(entry + 4, 4), offset = reader.number(entry + 8, 4);
    if (!offset) break;  // the data is truncated
    if (*tag != kOrientation) continue;
    // A value of up to four bytes is stored in the entry itself.
    const std::size_t bytes = bytes_of_type(*type);
    const std::uint64_t all = std::uint64_t{bytes} * *values;
    if (all == 0) continue;
    const std::size_t at = all <= 4 ? entry + 8 : *offset;
    if (at > tiff.size() || all > tiff.size() - at) continue;
    const std::uint32_t value = *reader.number(at, bytes);
    found = value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return found;
}

Transposition transposition_of(int orientation) {
  const int o = orientation;
  return {.swaps = o >= 5,
          .mirrors_x = o == 2 || o == 3 || o == 7 || o == 8,
          .mirrors_y = o == 3 || o == 4 || o == 6 || o == 7};
}

Size transposed(Size size, const Transposition& transposition) {
  if (transposition.swaps) std::swap(size.width, size.height);
  return size;
}

Region stored_region(const Region& shown, Size stored, const Transposition& transposition) {
  Region region = shown;
  if (transposition.swaps) region = {shown.y, shown.x, shown.height, shown.width};
  if (transposition.mirrors_x) region.x = stored.width - region.x - region.width;
  if (transposition.mirrors_y) region.y = stored.height - region.y - region.height;
  return region;
}

Image transposed(Image stored, const Transposition& transposition) {
  const auto [swaps, mirrors_x, mirrors_y] = transposition;
  if (!swaps && !mirrors_x && !mirrors_y) return stored;
  Image shown(transposed(stored.size(), transposition));
  for (int y = 0; y < shown.height(); ++y) {
    std::uint8_t* to = shown.row(y);
    for (int x = 0; x < shown.width(); ++x, to += Image::kChannels) {
      const int u = swaps ? y : x, v = swaps ? x : y;
      const std::uint8_t* from = stored.row(mirrors_y ? stored.height() - 1 - v : v) +
                                 Image::kChannels * (mirrors_x ? stored.width() - 1 - u : u);
      for (int channel = 0; channel < Image::kChannels; ++channel) to[channel] = from[channel];
    }
  }
  return shown;
}

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
        "{}: {} x {} pixels exceed the limit of {} (DecodeOptions::max_pixels)", name, width,
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
        "{}: the region of {} x {} at ({}, {}) is outside of the {} x {} pixels", name_,
        region.width, region.height, region.x, region.y, shown.width, shown.height);
  const Region stored = stored_region(region, transposed(shown, transposition_), transposition_);
  return transposed(codec_->read(stored, reduction), transposition_);
}

}  // namespace paceline::images
