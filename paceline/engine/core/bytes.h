#pragma once

// Bytes on the wire and in files: little-endian, written field by field, read with every length
// checked.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "paceline/engine/core/error.h"

namespace paceline {

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline std::string to_string(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Converts bytes to the type that libsodium takes.
inline unsigned char* as_octets(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}
inline const unsigned char* as_octets(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

// Copies `text` into a field of fixed size that ends with a zero; a text that is too long is cut.
// Requires: the field is all zero.
template <std::size_t kSize>
void put_text(std::array<char, kSize>& field, std::string_view text) {
  std::memcpy(field.data(), text.data(), std::min(text.size(), kSize - 1));
}
// The text up to the first zero, at most `length` bytes, with '?' in place of control characters
// that a terminal might obey.
std::string printable(const char* begin, std::size_t length);
template <std::size_t kSize>
std::string printable(const std::array<char, kSize>& field) {
  return printable(field.data(), kSize);
}

// Appends fields to a growing buffer.
class ByteWriter {
 public:
  template <class T>
    requires(std::is_integral_v<T> || std::is_enum_v<T>)
  void put(T value) {
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a big-endian port must swap here");
    const std::size_t end = buffer_.size();
    buffer_.resize(end + sizeof(T));
    std::memcpy(buffer_.data() + end, &value, sizeof(T));
  }
  void put_bytes(std::span<const std::byte> bytes) {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
  // A u32 length, then the bytes.
  void put_string(std::string_view text) {
    put(static_cast<std::uint32_t>(text.size()));
    put_bytes(as_bytes(text));
  }

  const std::vector<std::byte>& bytes() const { return buffer_; }
  std::vector<std::byte> take() { return std::move(buffer_); }

 private:
  std::vector<std::byte> buffer_;
};

// Reads fields from untrusted bytes. A read past the end throws Error(kCorrupt).
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
    requires(std::is_integral_v<T> || std::is_enum_v<T>)
  T get() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> take(std::size_t count) {
    if (count > bytes_.size()) throw Error(ErrorCode::kCorrupt, "a message ends too early");
    const auto head = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return head;
  }
  // The inverse of put_string(). Throws Error(kCorrupt) when the length is above `limit`.
  std::string get_string(std::size_t limit) {
    const auto length = get<std::uint32_t>();
    if (length > limit) throw Error(ErrorCode::kCorrupt, "a length in a message exceeds its limit");
    return to_string(take(length));
  }
  // Reads the number of elements that follow; each has at least `least_bytes` bytes. Throws
  // Error(kCorrupt) if the remaining bytes cannot hold them, so that allocating for them is safe.
  template <class Count>
  std::size_t get_count(std::size_t least_bytes) {
    const auto count = get<Count>();
    if (count > bytes_.size() / least_bytes)
      throw Error(ErrorCode::kCorrupt, "a message ends before the elements that it counts");
    return static_cast<std::size_t>(count);
  }
  std::size_t remaining() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

// CRC-32C (Castagnoli, RFC 3720): the checksum of TFRecord files and of the chunks of checkpoints.
// With SSE 4.2, 8 bytes take three cycles; in the same time, crc32c_of_chunks() handles 8 bytes of
// each of three chunks. On other processors, every byte costs a look-up in a table.
//
// `before`: the checksum of the preceding bytes, for data that is passed in several calls.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

// The checksum of each chunk of `chunk` bytes. Requires: bytes.size() == chunk * sums.size().
void crc32c_of_chunks(std::span<const std::byte> bytes, std::size_t chunk,
                      std::span<std::uint32_t> sums);

}  // namespace paceline
