#pragma once

// Memory into which what is to be written is copied, so that the training may go on; kept for the
// next time. Thread safety: none.

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace paceline {

class StagingMemory {
 public:
  // At least so many bytes, with their pages; what was there before is lost. Error(kSystem) when
  // there is no memory.
  std::byte* reserve(std::size_t bytes);
  std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t capacity_ = 0;
};

}  // namespace paceline
