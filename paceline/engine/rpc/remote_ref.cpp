#include "paceline/engine/rpc/remote_ref.h"

#include <mutex>
#include <set>
#include <utility>

#include "paceline/engine/core/check.h"
#include "paceline/engine/rpc/references.h"

namespace paceline::rpc {

std::string_view detail::full_method_name(std::string_view class_name, std::string_view method) {
  static std::mutex mutex;                          // guards names
  static auto& names = *new std::set<std::string>;  // never destroyed
  const std::lock_guard lock(mutex);
  return *names.insert(fmt::format("{}.{}", class_name, method)).first;
}

namespace detail {

namespace {

// The table that a reference belongs to.
std::shared_ptr<ReferenceTable> table_of(const HandlePointer& handle, std::string_view method) {
  check(handle != nullptr, "{}: the reference refers to nothing", method);
  auto table = handle->table.lock();
  check(table != nullptr,
        "{} of an object of worker {}: the worker of this process that held the reference has left",
        method, handle->id.owner);
  return table;
}

}  // namespace

const std::string& owner_of(const HandlePointer& handle) { return handle->id.owner; }
ObjectNumber number_of(const HandlePointer& handle) { return handle->id.number; }

bool is_same_object(const HandlePointer& one, const HandlePointer& other) {
  return !one || !other ? one == other : one->id == other->id;
}

void write_reference(MessageWriter& out, const HandlePointer& handle) {
  FieldCodec<ObjectId>::write(out, handle ? handle->id : ObjectId{});
  if (handle) out.refer(handle);
}

HandlePointer read_reference(MessageReader& in) {
  ObjectId id;
  FieldCodec<ObjectId>::read(in, id);
  if (id.number == 0) return nullptr;
  if (in.table() == nullptr) in.refuse("a reference can only be used inside a worker");
  auto handle = in.table()->receive(id);
  in.received(handle);
  return handle;
}

HandlePointer new_reference_beside(const HandlePointer& handle, std::string_view method) {
  const auto table = table_of(handle, method);
  ObjectId id = handle->id;
  id.number = new_object_number();
  return table->created(id);
}

FutureReply begin_object_call(const HandlePointer& handle, CallTarget target, RequestMaker request,
                              std::chrono::milliseconds deadline) {
  auto table = table_of(handle, target.method);
  auto caller = table->caller_of(*handle, target.method);
  target.object = handle->id.number;
  auto call = begin_call(*caller, *table, target, request, Deadline::after(deadline));
  return {std::move(caller), std::move(call), std::move(table)};
}

}  // namespace detail

}  // namespace paceline::rpc
