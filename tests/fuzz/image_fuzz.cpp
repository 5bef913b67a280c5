// Images that may come from anywhere: headers, whole images, parts of them, reduced images.

#include "paceline/files/images/encoded_image.h"

#include "tests/fuzz/fuzz.h"

namespace paceline::fuzz {
namespace {

// A number in [first, end) from one byte.
int take_below(std::span<const std::byte>& bytes, int first, int end) {
  return first + take_byte(bytes) * (end - first) / 256;
}

}  // namespace

void take(std::span<const std::byte> bytes) {
  const int way = take_byte(bytes);
  std::span<const std::byte> choices = bytes.first(std::min<std::size_t>(bytes.size(), 4));
  bytes = bytes.subspan(choices.size());
  images::EncodedImage image(bytes, "image", {.max_pixels = 1 << 14});
  const int reduction = image.can_reduce() ? 1 << way % 4 : 1;
  const images::Size size = image.reduced_size(reduction);
  images::Region region{.x = take_below(choices, 0, size.width),
                        .y = take_below(choices, 0, size.height)};
  region.width = take_below(choices, 1, size.width - region.x + 1);
  region.height = take_below(choices, 1, size.height - region.y + 1);
  const images::Image part = image.decode(region, reduction);
  int sum = 0;
  for (const std::uint8_t byte : part.bytes()) sum += byte;
  require(sum >= 0, "every pixel can be read");
  if (way >= 128) image.decode();  // decodes again, from the same bytes
}

}  // namespace paceline::fuzz
