// Files that may come from anywhere: safetensors, manifests, flight records.

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "paceline/engine/telemetry/flight_file.h"
#include "paceline/files/checkpoint/manifest.h"
#include "paceline/files/checkpoint/safetensors.h"

#include "tests/fuzz/fuzz.h"

namespace paceline::fuzz {
namespace {

// Reads every byte that the parsed file claims to have.
void read_safetensors(std::span<const std::byte> bytes) {
  const SafetensorsHeader header = parse_safetensors_header(bytes, bytes.size(), "file");
  std::size_t sum = 0;
  auto data = bytes.subspan(header.data);
  for (const TensorEntry& tensor : header.tensors) {
    for (const std::byte byte : data.first(tensor.bytes)) sum += static_cast<std::size_t>(byte);
    data = data.subspan(tensor.bytes);
  }
  require(sum <= 255 * bytes.size(), "tensors do not overlap");
}

void read_manifest(std::span<const std::byte> bytes) {
  const Manifest manifest = parse_manifest(text_of(bytes), "manifest");
  require(to_json(manifest) == text_of(bytes), "a manifest has one form");
}

// Puts header and first group, then operations with correct check words, into an otherwise empty
// file. So the contents of a file are parsed, and not only refused.
void read_padded_flight(std::span<const std::byte> bytes) {
  constexpr std::size_t kHead = sizeof(flight::Header) + sizeof(flight::Group);
  const auto file = std::make_unique<flight::File>();
  std::memset(static_cast<void*>(file.get()), 0, sizeof *file);
  const auto head = bytes.first(std::min(bytes.size(), kHead));
  std::memcpy(static_cast<void*>(file.get()), head.data(), head.size());
  bytes = bytes.subspan(head.size());
  const std::size_t count = std::min<std::size_t>(bytes.size() / sizeof(flight::Operation), 8);
  for (std::size_t i = 0; i < count; ++i) {
    std::array<std::uint64_t, flight::kNumWords> words;
    std::memcpy(words.data(), bytes.data() + i * sizeof words, sizeof words);
    words.back() = (words.back() & 0xffffffff) | std::uint64_t{flight::check_of(words)} << 32;
    std::memcpy(static_cast<void*>(&file->operations[i]), words.data(), sizeof words);
  }
  parse_flight(std::as_bytes(std::span(file.get(), 1)), "flight");
}

}  // namespace

void take(std::span<const std::byte> bytes) {
  switch (take_byte(bytes) % 4) {
    case 0:
      return read_safetensors(bytes);
    case 1:
      return read_manifest(bytes);
    case 2:
      return read_padded_flight(bytes);
    default:
      parse_flight(bytes, "flight");
  }
}

}  // namespace paceline::fuzz
