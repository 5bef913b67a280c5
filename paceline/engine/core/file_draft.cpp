#include "paceline/engine/core/file_draft.h"

#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/io.h"
#include "paceline/engine/core/secret.h"

namespace paceline {

FileDraft::FileDraft(std::string path, mode_t mode)
    : path_(std::move(path)),
      draft_(fmt::format("{}.{}.new", path_, random_hex(8))),
      file_(::open(draft_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode)) {
  if (!file_) throw system_error("making " + draft_);
}

FileDraft::~FileDraft() {
  if (!is_published_) ::unlink(draft_.c_str());
}

void FileDraft::publish() {
  if (::rename(draft_.c_str(), path_.c_str()) != 0)
    throw system_error(fmt::format("renaming {} to {}", draft_, path_));
  is_published_ = true;
}

void replace_file(const std::string& path, std::string_view text, mode_t mode) {
  FileDraft draft(path, mode);
  if (!write_whole(draft.fd(), as_bytes(text))) throw system_error("writing " + path);
  draft.publish();
}

}  // namespace paceline
