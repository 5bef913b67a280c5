#pragma once

// Which bytes of a rank are on their way, so that steps in order can overlap with the sends and
// receives before them: a read waits for what is being received there, a write also for what is
// being sent from there. Of a transfer that is half done, the bytes already moved are free.
// Scoreboard is for executors, RangesInUse for the simulator. Thread safety: none.

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

namespace paceline {

class Scoreboard {
 public:
  struct Bytes {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    bool overlaps(const Bytes& other) const { return begin < other.end && other.begin < end; }
  };

  // Something that lasts: a send reads `bytes`, a receive writes them.
  void begin(std::uint64_t id, Bytes bytes, bool writes) {
    if (bytes.begin < bytes.end) pending_.push_back({id, bytes.begin, bytes, writes});
  }
  // moved(id): how many of its bytes are through, from the first on; all if it is that many or
  // more.
  template <class Moved>
  void update(Moved moved) {
    std::erase_if(pending_, [&](Pending& one) {
      const std::size_t bytes = moved(one.id);
      one.rest.begin = std::min(one.rest.end, one.begin + std::min(bytes, one.size()));
      return one.rest.begin == one.rest.end;
    });
  }
  bool empty() const { return pending_.empty(); }
  void clear() { pending_.clear(); }

  bool may_read(Bytes bytes) const { return !conflicts(bytes, false); }
  bool may_write(Bytes bytes) const { return !conflicts(bytes, true); }

 private:
  struct Pending {
    std::uint64_t id;
    std::uintptr_t begin;
    Bytes rest;  // not yet through
    bool writes;
    std::size_t size() const { return rest.end - begin; }
  };

  bool conflicts(Bytes bytes, bool writes) const {
    for (const Pending& one : pending_) {
      if ((writes || one.writes) && one.rest.overlaps(bytes)) return true;
    }
    return false;
  }

  std::vector<Pending> pending_;
};

// As Scoreboard, for the simulator's ranks with thousands of messages under way: ranges are found
// by search, and are in use as a whole until they are not. Cost: a logarithm of their number, as
// long as ranges are about equally long.
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
