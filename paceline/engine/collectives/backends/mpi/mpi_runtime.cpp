#include "paceline/engine/collectives/backends/mpi/mpi_runtime.h"

#include <atomic>
#include <cstdlib>
#include <list>
#include <mutex>

#include "paceline/engine/core/check.h"

namespace paceline::mpi {
namespace {

std::atomic<bool> abandoned{false};

std::mutex& start_mutex() {
  static std::mutex mutex;
  return mutex;
}

// Without a launcher of MPI's, MPI_Init would make a world of one.
bool has_launcher() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

void end() {
  if (!abandoned && is_running()) MPI_Finalize();
}

void initialize(const LibraryContext& context) {
  int initialized = 0;
  require(MPI_Initialized(&initialized), "MPI_Initialized");
  if (initialized) return;
  check(has_launcher(),
        "{}: backend mpi needs MPI's own launcher, and this job was started by {}: mpirun -np "
        "{} PROGRAM, or another --backend",
        context.self(), context.who.launcher, context.who.world_size);
  int provided = 0;
  require(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  std::atexit(end);
}

void require_threads(const LibraryContext& context) {
  int provided = 0;
  require(MPI_Query_thread(&provided), "MPI_Query_thread");
  if (provided == MPI_THREAD_MULTIPLE) return;
  fail(ErrorCode::kUnsupported,
       "{}: backend mpi needs MPI_THREAD_MULTIPLE, which {} does not give{}", context.self(),
       version(), "; if the program calls MPI_Init, let it call MPI_Init_thread");
}

void require_same_world(const LibraryContext& context) {
  int rank = 0;
  int size = 0;
  require(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  require(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  check(rank == context.who.rank && size == context.who.world_size,
        "{}: MPI calls this process rank {} of {}, but it is rank {} of the {} of the job "
        "(launcher: {}); start the job with the mpirun of {}, to which this program is linked",
        context.self(), rank, size, context.who.rank, context.who.world_size, context.who.launcher,
        version());
}

}  // namespace

std::string version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "MPI";
  std::string first(text, static_cast<std::size_t>(length));
  first = first.substr(0, first.find_first_of(",\n"));
  // "MPICH Version:\t4.0.2".
  for (std::size_t at; (at = first.find_first_of(":\t")) != std::string::npos;) {
    first.replace(at, 1, first[at] == '\t' ? " " : "");
  }
  return first;
}

void start(const LibraryContext& context) {
  const std::lock_guard lock(start_mutex());
  initialize(context);
  require_threads(context);
  require_same_world(context);
}

void require(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(ErrorCode::kSystem, "{} failed: {}", what, text);
}

bool is_running() {
  int initialized = 0;
  int finalized = 0;
  return MPI_Initialized(&initialized) == MPI_SUCCESS && initialized != 0 &&
         MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0;
}

void abandon(std::vector<std::byte> memory) {
  static std::mutex mutex;
  static auto& kept = *new std::list<std::vector<std::byte>>;  // to the process's very end
  abandoned = true;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(memory));
}

}  // namespace paceline::mpi
