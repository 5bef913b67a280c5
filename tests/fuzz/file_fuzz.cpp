// Files that may come from anywhere: safetensors, manifests, flight records.

#include <cstring>

#include "paceline/checkpoint/manifest.h"
#include "paceline/checkpoint/safetensors.h"
#include "paceline/telemetry/flight_file.h"

#include "tests/fuzz/fuzz.h"

namespace paceline::fuzz {
namespace {

// Touches every byte that the parsed file is said to have.
void read_safetensors(std::span<const std::byte> bytes) {
  const Safetensors file = parse_safetensors(bytes, "file");
  std::size_t sum = 0;
  for (const NamedTensor& tensor : file.tensors) {
    for (const std::byte byte : tensor.bytes) sum += static_cast<std::size_t>(byte);
  }
  require(sum <= 255 * bytes.size(), "tensors do not overlap");
}

void read_manifest(std::span<const std::byte> bytes) {
  const Manifest manifest = parse_manifest(text_of(bytes), "manifest");
  require(to_json(manifest) == text_of(bytes), "a manifest has one form");
}

}  // namespace

void take(std::span<const std::byte> bytes) {
  switch (take_byte(bytes) % 3) {
    case 0:
      return read_safetensors(bytes);
    case 1:
      return read_manifest(bytes);
    default:
      parse_flight(bytes, "flight");
  }
}

}  // namespace paceline::fuzz
