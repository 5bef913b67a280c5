#include "paceline/engine/collectives/memory/write_fault.h"

#include <array>
#include <atomic>
#include <csignal>

#include <fmt/format.h>
#include <ucontext.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"

namespace paceline {

// What the handler needs, prepared: it must not format or allocate.
struct WriteFaultRange::Known {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  std::vector<std::size_t> offsets;
  std::vector<std::string> writes;  // a line for each offset
  std::vector<std::string> reads;
};

namespace {

// Groups of parameters of all models in a process: few.
constexpr std::size_t kMost = 64;
std::array<std::atomic<const WriteFaultRange::Known*>, kMost> ranges;
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

// Where the processor does not say it here, a write.
bool is_write([[maybe_unused]] const void* context) {
#ifdef __x86_64__
  constexpr greg_t kWrite = 2;  // of the error code of a page fault
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
  (void)is_installed;  // without it the process ends without the line
}

}  // namespace

WriteFaultRange::WriteFaultRange(std::span<const std::byte> memory, const std::string& who,
                                 std::vector<NamedRange> names)
    : known_([&] {
        auto known = std::make_unique<Known>();
        known->begin = memory.data();
        known->end = memory.data() + memory.size();
        if (names.empty()) names.push_back({0, "a parameter"});
        for (const NamedRange& named : names) {
          known->offsets.push_back(named.begin);
          known->writes.push_back(fmt::format(
              "{}: {} was written to outside of the optimizer's step; the ranks of this host share "
              "one copy of it, which the step alone may change\n",
              who, named.name));
          known->reads.push_back(fmt::format(
              "{}: {} was read through a pointer while parts of it are on other hosts; read it "
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

WriteFaultRange::~WriteFaultRange() {
  for (auto& slot : ranges) {
    const Known* own = known_.get();
    if (slot.compare_exchange_strong(own, nullptr)) return;
  }
}

}  // namespace paceline
