#pragma once

// A view of another store in which every key k is "prefix/k": one store carries many groups,
// generations and purposes that cannot meet. num_keys() and the timeout are those of the store
// below.
//
// Thread safety: as Store. Shares ownership of the store below with its other users.

#include <memory>

#include "paceline/engine/store/store.h"
#include "paceline/engine/store/store_request.h"

namespace paceline {

class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> below);

  StoreReply run(const StoreRequest& request) override;
  std::chrono::milliseconds timeout() const override { return below_->timeout(); }
  void set_timeout(std::chrono::milliseconds timeout) override { below_->set_timeout(timeout); }

 private:
  std::string prefix_;
  std::shared_ptr<Store> below_;
};

}  // namespace paceline
