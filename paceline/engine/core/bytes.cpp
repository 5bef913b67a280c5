#include "paceline/engine/core/bytes.h"

#include <array>
#include <cstring>

namespace paceline {

std::string printable(const char* begin, std::size_t length) {
  std::string text(begin, strnlen(begin, length));
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) c = '?';
  }
  return text;
}

namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  constexpr std::uint32_t kReflectedPolynomial = 0x82f63b78;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value & 1) != 0 ? (value >> 1) ^ kReflectedPolynomial : value >> 1;
    }
    table[i] = value;
  }
  return table;
}

constexpr auto kTable = make_table();

// `crc` and the result are the raw register; the caller inverts them.
std::uint32_t by_table(std::uint32_t crc, const std::byte* data, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    crc = kTable[(crc ^ static_cast<std::uint32_t>(data[i])) & 0xff] ^ (crc >> 8);
  }
  return crc;
}

#ifdef __x86_64__
std::uint64_t word_at(const std::byte* data) {
  std::uint64_t word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(std::uint32_t crc,
                                                               const std::byte* data,
                                                               std::size_t size) {
  std::uint64_t wide = crc;
  for (; size >= 8; data += 8, size -= 8) wide = __builtin_ia32_crc32di(wide, word_at(data));
  crc = static_cast<std::uint32_t>(wide);
  for (; size > 0; ++data, --size)
    crc = __builtin_ia32_crc32qi(crc, static_cast<unsigned char>(*data));
  return crc;
}

// Computes the CRCs of three chunks in parallel: SSE 4.2's crc32 instruction has a latency of three
// cycles, and one can start in each cycle. Requires: `chunk` is a multiple of 8 bytes.
__attribute__((target("sse4.2"))) void three_by_instruction(const std::byte* data,
                                                            std::size_t chunk,
                                                            std::uint32_t* sums) {
  std::uint64_t a = ~std::uint32_t{0}, b = a, c = a;
  for (std::size_t i = 0; i < chunk; i += 8) {
    a = __builtin_ia32_crc32di(a, word_at(data + i));
    b = __builtin_ia32_crc32di(b, word_at(data + chunk + i));
    c = __builtin_ia32_crc32di(c, word_at(data + 2 * chunk + i));
  }
  sums[0] = ~static_cast<std::uint32_t>(a);
  sums[1] = ~static_cast<std::uint32_t>(b);
  sums[2] = ~static_cast<std::uint32_t>(c);
}

bool has_instruction() { return __builtin_cpu_supports("sse4.2") != 0; }
#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
#ifdef __x86_64__
  if (has_instruction()) return ~by_instruction(~before, bytes.data(), bytes.size());
#endif
  return ~by_table(~before, bytes.data(), bytes.size());
}

void crc32c_of_chunks(std::span<const std::byte> bytes, std::size_t chunk,
                      std::span<std::uint32_t> sums) {
  std::size_t done = 0;
#ifdef __x86_64__
  if (has_instruction() && chunk % 8 == 0) {
    for (; done + 3 <= sums.size(); done += 3)
      three_by_instruction(bytes.data() + done * chunk, chunk, sums.data() + done);
  }
#endif
  for (; done < sums.size(); ++done) sums[done] = crc32c(bytes.subspan(done * chunk, chunk));
}

}  // namespace paceline
