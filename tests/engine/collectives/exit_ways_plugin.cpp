// A module that a test loads and unloads.

#include <memory>

namespace {
std::shared_ptr<void> held;
}  // namespace

extern "C" std::shared_ptr<void>* held_by_plugin() { return &held; }
