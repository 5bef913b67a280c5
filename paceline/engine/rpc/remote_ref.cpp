#include "paceline/engine/rpc/remote_ref.h"

#include <mutex>
#include <set>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/check.h"

namespace paceline::rpc {

std::string_view detail::full_method_name(std::string_view class_name, std::string_view method) {
  static std::mutex mutex;                          // guards names
  static auto& names = *new std::set<std::string>;  // never destroyed
  const std::lock_guard lock(mutex);
  return *names.insert(fmt::format("{}.{}", class_name, method)).first;
}

ObjectNumber detail::new_object_number() {
  ObjectNumber number = 0;
  while (number == 0) fill_random(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

std::shared_ptr<ReferenceTable> detail::table_of(const HandlePointer& handle,
                                                 std::string_view method) {
  check(handle != nullptr, "{} over a reference that refers to nothing", method);
  auto table = handle->table.lock();
  check(table != nullptr,
        "{} of an object of worker {}: the worker that had the reference has left", method,
        handle->id.owner);
  return table;
}

HandlePointer detail::receive_reference(MessageReader& in, const ObjectId& id) {
  if (in.table() == nullptr) in.refuse("a reference means nothing outside a worker");
  auto handle = in.table()->receive(id);
  in.received(handle);
  return handle;
}

}  // namespace paceline::rpc
