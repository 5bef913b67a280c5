#pragma once

// A view of another store in which every key k is "prefix/k": one store carries many groups,
// generations and purposes that cannot meet. num_keys() and the timeout are those of the store
// below.
//
// Thread safety: as Store. Shares ownership of the store below with its other users.

#include <memory>

#include "paceline/store/store.h"

namespace paceline {

class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> below);

  using Store::get;
  using Store::multi_get;
  using Store::wait;
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override;
  void append(const std::string& key, const std::string& value) override;
  bool delete_key(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t num_keys() override;
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override;
  std::vector<std::string> multi_get(const std::vector<std::string>& keys,
                                     std::chrono::milliseconds timeout) override;
  void multi_set(const std::vector<std::string>& keys,
                 const std::vector<std::string>& values) override;
  std::chrono::milliseconds timeout() const override { return below_->timeout(); }
  void set_timeout(std::chrono::milliseconds timeout) override { below_->set_timeout(timeout); }

 private:
  std::string longer(const std::string& key) const;
  std::vector<std::string> longer(const std::vector<std::string>& keys) const;

  std::string prefix_;
  std::shared_ptr<Store> below_;
};

}  // namespace paceline
