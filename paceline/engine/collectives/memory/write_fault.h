#pragma once

// Says what a program wrote to when it wrote to memory that it may only read, or read where it may
// not do that either: a line on stderr with the name of the place, in front of the SIGSEGV that
// ends the process as without it. Handlers that were there before, such as the one that shows the
// stack to the launcher (crash_reporter.h), run after that line.
//
// Thread safety: any thread may make and destroy objects, and fault.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace paceline {

struct NamedRange {
  std::size_t begin = 0;  // offset of its first byte
  std::string name;       // "parameter fc1.weight"
};

class WriteFaultRange {
 public:
  // `names`: in the order of their beginnings; each reaches to the next one. `who`: the rank, for
  // the line.
  WriteFaultRange(std::span<const std::byte> memory, const std::string& who,
                  std::vector<NamedRange> names);
  ~WriteFaultRange();
  WriteFaultRange(const WriteFaultRange&) = delete;
  WriteFaultRange& operator=(const WriteFaultRange&) = delete;

  struct Known;

 private:
  const std::unique_ptr<const Known> known_;
};

}  // namespace paceline
