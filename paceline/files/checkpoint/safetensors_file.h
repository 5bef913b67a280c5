#pragma once

// A safetensors file of which tensors are read one by one, so that memory holds only what is read.
//
// Thread safety: read() from any thread.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "paceline/engine/core/fd.h"
#include "paceline/files/checkpoint/safetensors.h"

namespace paceline {

class SafetensorsFile {
 public:
  // Reads the header. Errors as of open_plain_file() and parse_safetensors().
  explicit SafetensorsFile(const std::string& path, ForeignTypes foreign = ForeignTypes::kRefuse);

  const SafetensorsHeader& header() const { return header_; }
  // Fills `bytes`, which has the size of the tensor of this name. Errors as of
  // read_plain_file_at(). Requires: the header has the name.
  void read(const std::string& name, std::span<std::byte> bytes) const;

 private:
  const std::string path_;
  const Fd file_;
  SafetensorsHeader header_;
  std::map<std::string, std::uint64_t> positions_;
};

}  // namespace paceline
