#include "paceline/engine/collectives/memory/one_copy.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <limits>
#include <mutex>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/resource_limits.h"

namespace paceline {

// Everything that the signal handler needs, prepared in advance, because the handler must not
// format or allocate.
struct AccessFaultRange::Known {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  std::vector<std::size_t> offsets;
  // A line for each offset, which the launcher shows as the cause.
  std::vector<std::string> writes;
  std::vector<std::string> reads;
};

namespace {

// The most AccessFaultRange objects of which accesses are reported. A process has one such object
// for each OneCopy.
constexpr std::size_t kMaxRanges = 64;
std::array<std::atomic<const AccessFaultRange::Known*>, kMaxRanges> ranges;
struct sigaction before {};

const std::string* line_about(const std::byte* address, bool is_write) {
  for (const auto& slot : ranges) {
    const auto* const range = slot.load();
    if (range == nullptr || address < range->begin || address >= range->end) continue;
    const auto offset = static_cast<std::size_t>(address - range->begin);
    std::size_t found = 0;
    while (found + 1 < range->offsets.size() && range->offsets[found + 1] <= offset) ++found;
    return is_write ? &range->writes[found] : &range->reads[found];
  }
  return nullptr;
}

// Whether the fault was a write; true on processors other than x86-64, where this handler cannot
// tell.
bool is_write([[maybe_unused]] const void* context) {
#ifdef __x86_64__
  constexpr greg_t kWrite = 2;  // the bit of a page fault's error code that marks a write
  return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kWrite) != 0;
#else
  return true;
#endif
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const auto* const address = static_cast<const std::byte*>(info->si_addr);
  if (info->si_code > 0) {
    if (const std::string* const line = line_about(address, is_write(context))) {
      [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line->data(), line->size());
    }
  }
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(signal, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
    return before.sa_handler(signal);
  std::signal(signal, SIG_DFL);  // the instruction runs again, and the fault ends the process
  if (info->si_code <= 0) raise(signal);
}

void install_handler() {
  static const bool is_installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGSEGV, &action, &before) == 0;
  }();
  (void)is_installed;  // without the handler the process ends without the line
}

}  // namespace

AccessFaultRange::AccessFaultRange(std::span<const std::byte> memory, const std::string& who,
                                   std::vector<NamedRange> names)
    : known_([&] {
        auto known = std::make_unique<Known>();
        known->begin = memory.data();
        known->end = memory.data() + memory.size();
        if (names.empty()) names.push_back({0, "a parameter"});
        for (const NamedRange& named : names) {
          known->offsets.push_back(named.begin);
          known->writes.push_back(fmt::format(
              "error: {}: {} was written to outside of the optimizer's step; the ranks of this "
              "host share "
              "one copy of it, which only the step may change: load or initialise weights before "
              "fully_shard(), or hold optimizer.writable_parameters() on all ranks while you "
              "write\n",
              who, named.name));
          known->reads.push_back(fmt::format(
              "error: {}: {} was read through a pointer while parts of it are on other hosts; read "
              "it "
              "through an operation of LibTorch, or hold Optimizer::whole_parameters()\n",
              who, named.name));
        }
        return known;
      }()) {
  install_handler();
  for (auto& slot : ranges) {
    const Known* none = nullptr;
    if (slot.compare_exchange_strong(none, known_.get())) return;
  }
}

AccessFaultRange::~AccessFaultRange() {
  for (auto& slot : ranges) {
    const Known* own = known_.get();
    if (slot.compare_exchange_strong(own, nullptr)) return;
  }
}

namespace {

void require_room(ProcessGroup& group, std::size_t bytes) {
  const auto room = memory_room();
  constexpr auto kAny = std::numeric_limits<std::int64_t>::max();
  const auto mine =
      room ? static_cast<std::int64_t>(std::min<std::uint64_t>(room->bytes, kAny)) : kAny;
  const auto least = all_reduce_value(group, mine, ReduceOp::kMin);
  if (bytes <= static_cast<std::uint64_t>(least)) return;
  const bool is_short_here = static_cast<std::uint64_t>(mine) < bytes;
  fail(ErrorCode::kSystem,
       "{}: one copy of the parameters for all ranks takes {} bytes, and {} are left{}; use a "
       "smaller model, or give the job more memory",
       group.self(), bytes, is_short_here ? mine : least,
       is_short_here ? " " + room->source : std::string());
}

SymmetricBuffer reserve(ProcessGroup& group, std::size_t bytes, std::size_t used) {
  check(bytes > 0, "{}: one copy for all ranks: 0 bytes", group.self());
  require_room(group, used);
  SymmetricBuffer blocks = group.reserve_symmetric(bytes);
  for (int rank = 0; rank < group.world_size(); ++rank) {
    if (blocks.of(rank) != nullptr) continue;
    fail(ErrorCode::kUnsupported,
         "{}: the ranks of this group share no memory (transport {}), so they cannot have one "
         "copy of the parameters; keep one on each rank",
         group.self(), group.transport());
  }
  return blocks;
}

}  // namespace

struct OneCopy::Views {
  std::mutex mutex;  // guards `all`
  std::vector<const View*> all;
};

OneCopy::Views& OneCopy::views() {
  static auto* const of_process = new Views;  // outlives every copy
  return *of_process;
}

OneCopy::View::View(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {
  const std::lock_guard lock(views().mutex);
  views().all.reserve(views().all.size() + 1);  // this may throw, so it comes before the mapping
  // With an old size of 0, mremap maps shared pages a second time; it refuses private pages.
  void* const second = mremap(data, 0, bytes, MREMAP_MAYMOVE);
  begin_ = second == MAP_FAILED ? data : static_cast<std::byte*>(second);
  views().all.push_back(this);
}

OneCopy::View::~View() {
  {
    const std::lock_guard lock(views().mutex);
    std::erase(views().all, this);
  }
  if (is_second()) munmap(begin_, bytes_);
}

bool OneCopy::View::contains(const void* address) const {
  const auto* const place = static_cast<const std::byte*>(address);
  return place >= begin_ && place < begin_ + bytes_;
}

OneCopy::OneCopy(ProcessGroup& group, std::size_t bytes, std::vector<NamedRange> names,
                 std::optional<std::size_t> used)
    : blocks_(reserve(group, bytes, used.value_or(bytes))),
      bytes_(bytes),
      data_(blocks_.of(0)),
      view_(data_, bytes_) {
  if (!view_.is_second()) return;
  protect(0, bytes_, PROT_READ);
  const auto rank = static_cast<std::size_t>(group.rank());
  fault_ = std::make_unique<AccessFaultRange>(std::span<const std::byte>(read_only(), bytes_),
                                              rank_name(group.rank(), group.world_ranks()[rank]),
                                              std::move(names));
}

bool OneCopy::holds(const void* address) {
  const std::lock_guard lock(views().mutex);
  return std::ranges::any_of(views().all,
                             [address](const View* view) { return view->contains(address); });
}

void OneCopy::protect(std::size_t offset, std::size_t bytes, int protection) const {
  if (!view_.is_second()) return;
  if (mprotect(read_only() + offset, bytes, protection) != 0) {
    throw system_error(fmt::format("mprotect of {} bytes of parameters", bytes));
  }
}

void OneCopy::close(std::size_t offset, std::size_t bytes) const {
  protect(offset, bytes, PROT_NONE);
}

void OneCopy::open(std::size_t offset, std::size_t bytes) const {
  protect(offset, bytes, PROT_READ);
}

void OneCopy::drop(std::size_t offset, std::size_t bytes) const {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t begin = (offset + page - 1) / page * page;
  const std::size_t end = (offset + bytes) / page * page;
  if (begin >= end) return;
  // Ranks that are threads have private memory, for which the second call is needed.
  if (madvise(data_ + begin, end - begin, MADV_REMOVE) == 0) return;
  madvise(data_ + begin, end - begin, MADV_DONTNEED);
}

OneCopy::Writing::Writing(const OneCopy& copy) : copy_(copy) {
  const std::lock_guard lock(copy_.mutex_);
  if (copy_.num_writers_ == 0) copy_.protect(0, copy_.bytes_, PROT_READ | PROT_WRITE);
  ++copy_.num_writers_;
}

OneCopy::Writing::~Writing() {
  const std::lock_guard lock(copy_.mutex_);
  if (--copy_.num_writers_ > 0) return;
  // Making the mapping read-only again splits no mapping, so it should not fail.
  try {
    copy_.protect(0, copy_.bytes_, PROT_READ);
  } catch (const Error&) {  // without protection, forbidden writes go unnoticed
  }
}

}  // namespace paceline
