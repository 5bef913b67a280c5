#pragma once

// Which bytes of a rank are on their way, as Scoreboard
// (engine/collectives/algorithms/scoreboard.h), for the simulator's ranks with thousands of
// messages under way: found by search, and in use as a whole until they are not.
//
// Cost: a logarithm of their number, as long as ranges are about equally long.
// Thread safety: none.

#include <algorithm>
#include <map>

#include "paceline/engine/collectives/algorithms/scoreboard.h"

namespace paceline {

class RangesInUse {
 public:
  using Bytes = Scoreboard::Bytes;

  // A send reads `bytes`, a receive writes them.
  void begin(Bytes bytes, bool writes) {
    if (bytes.begin < bytes.end) (writes ? written_ : read_).insert(bytes);
  }
  // What began so.
  void end(Bytes bytes, bool writes) {
    if (bytes.begin < bytes.end) (writes ? written_ : read_).erase(bytes);
  }
  bool empty() const { return read_.empty() && written_.empty(); }
  bool may_read(Bytes bytes) const { return !written_.overlap(bytes); }
  bool may_write(Bytes bytes) const { return may_read(bytes) && !read_.overlap(bytes); }

 private:
  class Ranges {
   public:
    void insert(Bytes bytes) {
      ends_.emplace(bytes.begin, bytes.end);
      longest_ = std::max(longest_, bytes.end - bytes.begin);
    }
    void erase(Bytes bytes) {
      auto found = ends_.find(bytes.begin);
      while (found->second != bytes.end) ++found;
      ends_.erase(found);
    }
    bool empty() const { return ends_.empty(); }
    bool overlap(Bytes bytes) const {
      if (ends_.empty()) return false;
      auto at = ends_.lower_bound(bytes.begin - std::min(bytes.begin, longest_));
      for (; at != ends_.end() && at->first < bytes.end; ++at) {
        if (at->second > bytes.begin) return true;
      }
      return false;
    }

   private:
    std::multimap<std::uintptr_t, std::uintptr_t> ends_;  // by where a range begins
    std::uintptr_t longest_ = 0;                          // so far
  };

  Ranges read_, written_;
};

}  // namespace paceline
