#pragma once

// Objects that another user may have planted in place of a file that is about to be written or
// read, and a victim: another user's file, which must not change.

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/harness/fresh_directory.h"

namespace paceline::harness {

struct PlantedKind {
  const char* what;
  std::function<void(const std::string& name, const std::string& victim)> plant;
};

inline const std::vector<PlantedKind>& planted_kinds() {
  namespace fs = std::filesystem;
  static const std::vector<PlantedKind> kinds = {
      {"a link to a file", [](auto& name, auto& victim) { fs::create_symlink(victim, name); }},
      {"a dangling link",
       [](auto& name, auto& victim) { fs::create_symlink(victim + "-none", name); }},
      {"a loop", [](auto& name, auto&) { fs::create_symlink(name, name); }},
      {"a second name", [](auto& name, auto& victim) { fs::create_hard_link(victim, name); }},
      {"a FIFO", [](auto& name, auto&) { EXPECT_EQ(::mkfifo(name.c_str(), 0600), 0); }},
      {"a link to a device", [](auto& name, auto&) { fs::create_symlink("/dev/zero", name); }},
      {"a folder", [](auto& name, auto&) { fs::create_directory(name); }},
  };
  return kinds;
}

// Plants each kind in turn under `name` in a new folder, and calls `use` with that folder. `use`
// must return, and must not change the victim to which the planted object may lead.
inline void with_each_planted(const std::string& name,
                              const std::function<void(const std::string& folder)>& use) {
  for (const PlantedKind& kind : planted_kinds()) {
    SCOPED_TRACE(std::string(kind.what) + " as " + name);
    const FreshDirectory elsewhere, folder;
    const std::string victim = elsewhere.write("victim", "precious");
    kind.plant(folder.file(name), victim);
    use(folder.path());
    std::ifstream file(victim);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "precious");
    EXPECT_FALSE(std::filesystem::exists(victim + "-none"));
  }
}

}  // namespace paceline::harness
