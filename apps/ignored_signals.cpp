#include "apps/ignored_signals.h"

#include <array>
#include <csignal>

namespace paceline::apps {
namespace {

constexpr std::array kSignals = {SIGHUP, SIGINT, SIGQUIT, SIGTSTP};

std::array<bool, kSignals.size()> were_ignored{};

void note_ignored_signals(int, char**, char**) {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action {};
    were_ignored[i] = sigaction(kSignals[i], nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
  }
}

// Called before any library's constructor.
[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kNoteBeforeConstructors)(int, char**, char**) = note_ignored_signals;

}  // namespace

void restore_ignored_signals() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (were_ignored[i]) std::signal(kSignals[i], SIG_IGN);
  }
}

}  // namespace paceline::apps
