#include "paceline/files/images/image_file.h"

#include <algorithm>

#include <fcntl.h>
#include <sys/stat.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/fd.h"
#include "paceline/engine/core/io.h"

namespace paceline::images {
namespace {

// Of the UTF-8 sequence that begins there; 0: there is none to print.
std::size_t sequence_size(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const std::size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || size > text.size()) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Longer than need be, a surrogate, or beyond Unicode.
  const unsigned second = byte(1);
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90))
    return 0;
  return size;
}

}  // namespace

std::string printable(std::string_view name) {
  std::string text;
  while (!name.empty()) {
    const std::size_t size = sequence_size(name);
    if (size > 0) {
      text += name.substr(0, size);
    } else {
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(name[0]));
    }
    name.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return text;
}

std::vector<std::byte> read_image_file(const std::string& path, std::int64_t max_bytes) {
  // Not to wait for the writer of a pipe.
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) throw system_error(printable(path));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) throw system_error(printable(path));
  check(S_ISREG(status.st_mode), "{}: is not a regular file", printable(path));
  check(status.st_size <= max_bytes,
        "{}: {} bytes are above the limit of {} (DecodeOptions::max_file_bytes)", printable(path),
        status.st_size, max_bytes);
  const auto size = static_cast<std::size_t>(status.st_size);
  std::vector<std::byte> bytes(size + 1);  // one more, to see the end
  const ssize_t got = read_whole(file.get(), bytes);
  if (got < 0) throw system_error(printable(path));
  if (static_cast<std::size_t>(got) != size) {
    fail(ErrorCode::kCorrupt, "{}: its size changed while it was read, from {} to {} bytes",
         printable(path), size, got);
  }
  bytes.resize(size);
  return bytes;
}

}  // namespace paceline::images
