#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <zlib.h>

#include "paceline/files/images/encoded_image.h"

namespace paceline::images {
namespace {

constexpr std::size_t kSignature = 8, kLength = 4, kType = 4, kChecksum = 4;
// The most bytes of one text, and of all decompressed texts of a file, as in Pillow.
constexpr std::size_t kMaxText = std::size_t{1} << 20, kMaxPackedTexts = std::size_t{64} << 20;

struct Chunk {
  std::string_view type, data;
};

std::uint32_t number_at(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i)
    value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

// Takes the next chunk from `file`. Returns false at the end, and when the file is truncated.
bool take_chunk(std::string_view& file, Chunk& chunk) {
  constexpr std::size_t kAround = kLength + kType + kChecksum;
  if (file.size() < kAround) return false;
  const std::size_t length = number_at(file, 0);
  if (length > file.size() - kAround) return false;
  chunk = {file.substr(kLength, kType), file.substr(kLength + kType, length)};
  file.remove_prefix(kAround + length);
  return true;
}

bool is_sound(const Chunk& chunk) {
  // Type, data and checksum are adjacent in the file.
  const auto* const begin = reinterpret_cast<const Bytef*>(chunk.type.data());
  const auto sum = crc32(0, begin, static_cast<uInt>(kType + chunk.data.size()));
  return sum == number_at({chunk.data.data() + chunk.data.size(), kChecksum}, 0);
}

// Decompresses zlib data and subtracts the size of the result from `room`. Truncated data gives the
// text up to the cut. Returns nullopt if the data is damaged or the result is longer than kMaxText
// or `room`.
std::optional<std::string> unpacked(std::string_view packed, std::size_t& room) {
  z_stream stream{};
  if (inflateInit(&stream) != Z_OK) return {};
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  const std::size_t most = std::min(kMaxText, room);
  std::string text;
  int status = Z_OK;
  while (status == Z_OK && stream.avail_out == 0 && text.size() <= most) {
    const std::size_t before = text.size();
    text.resize(before + std::min(std::max(before, std::size_t{1024}), most + 1));
    stream.next_out = reinterpret_cast<Bytef*>(text.data() + before);
    stream.avail_out = static_cast<uInt>(text.size() - before);
    status = inflate(&stream, Z_SYNC_FLUSH);
  }
  text.erase(text.size() - stream.avail_out);
  inflateEnd(&stream);
  room -= std::min(room, text.size());
  const bool is_sound = status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR;
  if (!is_sound || text.size() > most) return {};
  return text;
}

// Removes and returns the part before the next zero byte; nullopt when there is none.
std::optional<std::string_view> take_word(std::string_view& text) {
  const std::size_t end = text.find('\0');
  if (end == std::string_view::npos) return {};
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end + 1);
  return word;
}

// The text after the keyword of a tEXt, zTXt or iTXt chunk, decompressed; nullopt if it is damaged
// or too long.
std::optional<std::string> text_after_keyword(const Chunk& chunk, std::string_view rest,
                                              std::size_t& room) {
  if (chunk.type == "zTXt") {
    if (rest.empty() || rest[0] != 0) return {};  // 0 is the only compression method
    return unpacked(rest.substr(1), room);
  }
  if (chunk.type != "iTXt") return std::string(rest);
  if (rest.size() < 2) return {};
  const bool is_packed = rest[0] != 0, has_known_method = rest[1] == 0;
  rest.remove_prefix(2);
  // Skips the language and the translated keyword.
  if (!take_word(rest) || !take_word(rest)) return {};
  if (!is_packed) return std::string(rest);
  return has_known_method ? unpacked(rest, room) : std::nullopt;
}

int digit_of(char letter) {
  if (letter >= '0' && letter <= '9') return letter - '0';
  if (letter >= 'a' && letter <= 'f') return letter - 'a' + 10;
  if (letter >= 'A' && letter <= 'F') return letter - 'A' + 10;
  return -1;
}

// A profile of ImageMagick consists of an empty line, its kind, the number of bytes, then lines of
// digits.
std::string profile_bytes(std::string_view text) {
  for (int line = 0; line < 3; ++line) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  std::string bytes;
  int high = -1;
  for (const char letter : text) {
    if (std::string_view(" \t\r\n").find(letter) != std::string_view::npos) continue;
    const int digit = digit_of(letter);
    if (digit < 0) return {};
    if (high >= 0) bytes += static_cast<char>(high << 4 | digit);
    high = high < 0 ? digit : -1;
  }
  return bytes;
}

// Finds tiff:Orientation, as an attribute or an element.
std::optional<int> orientation_in_xmp(std::string_view xmp) {
  constexpr std::string_view kName = "tiff:Orientation";
  for (std::size_t at = xmp.find(kName); at != std::string_view::npos;
       at = xmp.find(kName, at + 1)) {
    std::string_view rest = xmp.substr(at + kName.size());
    if (rest.starts_with("=\"")) {
      rest.remove_prefix(2);
    } else if (rest.starts_with(">")) {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') return rest[0] - '0';
  }
  return {};
}

// The last text of each kind.
struct Found {
  std::optional<std::string> exif, profile, xmp;
  std::size_t room = kMaxPackedTexts;  // left for decompressed texts
};

void look_at(const Chunk& chunk, Found& found) {
  if (chunk.type == "eXIf") {
    found.exif = std::string(chunk.data);
    return;
  }
  if (chunk.type != "tEXt" && chunk.type != "zTXt" && chunk.type != "iTXt") return;
  std::string_view rest = chunk.data;
  const auto keyword = take_word(rest);
  if (!keyword) return;
  const bool is_exif = *keyword == "exif" && chunk.type == "tEXt";
  const bool is_profile = *keyword == "Raw profile type exif",
             is_xmp = *keyword == "XML:com.adobe.xmp";
  if (!is_exif && !is_profile && !is_xmp) return;
  auto text = text_after_keyword(chunk, rest, found.room);
  if (!text) return;
  (is_exif ? found.exif : is_profile ? found.profile : found.xmp) = std::move(text);
}

}  // namespace

int png_orientation(std::span<const std::byte> file) {
  std::string_view rest(reinterpret_cast<const char*>(file.data()), file.size());
  rest.remove_prefix(std::min(kSignature, rest.size()));
  Found found;
  for (Chunk chunk; take_chunk(rest, chunk);) {
    const bool may_tell = chunk.type != "IDAT" && chunk.type != "IHDR";
    if (may_tell && is_sound(chunk)) look_at(chunk, found);
  }
  if (!found.exif && found.profile) found.exif = profile_bytes(*found.profile);
  std::optional<int> orientation;
  if (found.exif) orientation = orientation_of(std::as_bytes(std::span(*found.exif)));
  if (!orientation && found.xmp) orientation = orientation_in_xmp(*found.xmp);
  return orientation && *orientation >= 1 && *orientation <= 8 ? *orientation : 1;
}

}  // namespace paceline::images
