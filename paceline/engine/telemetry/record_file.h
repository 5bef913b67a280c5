#pragma once

// The files in which a process records its work for other programs: flight files, timelines, gauges
// of calls and steps. Each of them is one mapped struct in a folder that an environment variable
// names, and tells which process writes it.
//
// Thread safety: any thread may call the functions.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/safe_files.h"

namespace paceline {

// The value of RANK; 0 when it is not set.
int rank_of_process();
// The folder that an environment variable names; nullopt when it is unset or empty.
std::optional<std::string> record_folder(const char* variable);
// The paths of the files in a folder whose names end in `suffix`, sorted.
std::vector<std::string> records_in(const std::string& folder, std::string_view suffix,
                                    std::error_code& error);
// Removes a gauge's file when the gauge ends, unless PACELINE_FLIGHT_KEEP=1 leaves that to the
// program that started the job.
void remove_record(const std::string& path);

// Reserves the size of a File in `file` and maps it, shared and writable. On failure it returns
// null and sets errno.
template <class File>
File* map_record(int file, int flags = 0) {
  if (!reserve_file(file, sizeof(File))) return nullptr;
  void* const memory =
      mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED | flags, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<File*>(memory);
}
// Maps a gauge; an existing file keeps its contents. A gauge is optional, so the result is null
// when it cannot be mapped.
template <class File>
File* map_gauge(const std::string& path) {
  const Fd file = open_to_write(path, O_RDWR | O_CREAT, 0600);
  return file ? map_record<File>(file.get()) : nullptr;
}
// Maps a new file. Throws Error(kSystem): "reserving space for WHAT PATH: ...".
template <class File>
File* map_draft(const FileDraft& draft, const std::string& what, int flags = 0) {
  auto* const file = map_record<File>(draft.fd(), flags);
  if (file == nullptr) throw system_error("reserving space for " + what + " " + draft.path());
  return file;
}

// Fills in the fields of a header that name this process.
template <class Header>
void name_this_process(Header& header) {
  header.pid = getpid();
  const auto self = process_status(getpid());
  header.process_start = self ? self->start_ticks : 0;
  put_text(header.boot, boot_id());
  put_text(header.pid_namespace, pid_namespace());
  put_text(header.host, host_name());
}

// The kernel's id of the calling thread, looked up once for each thread.
inline std::uint32_t this_thread() noexcept {
  thread_local const auto id = static_cast<std::uint32_t>(gettid());
  return id;
}

}  // namespace paceline
