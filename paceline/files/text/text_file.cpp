#include "paceline/files/text/text_file.h"

#include <filesystem>
#include <fstream>
#include <span>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/file_start.h"

namespace paceline::text {

std::string read_text_file(const std::string& path, std::uint64_t max_bytes) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) fail(ErrorCode::kCorrupt, "{}: {}", path, error.message());
  if (!std::filesystem::is_regular_file(path)) {
    fail(ErrorCode::kCorrupt, "{}: not a regular file", path);
  }
  if (bytes > max_bytes) {
    fail(ErrorCode::kCorrupt, "{}: {} bytes are more than the {} that are read", path, bytes,
         max_bytes);
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(bytes));
  if (static_cast<std::uint64_t>(file.gcount()) != bytes) {
    fail(ErrorCode::kCorrupt, "{}: only {} of {} bytes could be read", path, file.gcount(), bytes);
  }
  const auto bytes_read = std::as_bytes(std::span(text));
  const std::string_view mistaken = mistaken_file(bytes_read);
  if (!mistaken.empty()) fail(ErrorCode::kCorrupt, "{}: {}", path, mistaken);
  text.erase(0, text_start(bytes_read, path));
  return text;
}

}  // namespace paceline::text
