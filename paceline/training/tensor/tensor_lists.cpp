#include "paceline/training/tensor/tensor_lists.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <ATen/ATen.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {

namespace {

std::vector<std::vector<at::Tensor>> all_from_bytes(const std::vector<std::string>& objects) {
  std::vector<std::vector<at::Tensor>> lists;
  for (const std::string& object : objects) lists.push_back(tensors_from_bytes(object));
  return lists;
}

}  // namespace

std::vector<at::Tensor> broadcast_object(GroupRef group, const std::vector<at::Tensor>& tensors,
                                         int root, const ObjectOptions& options) {
  const std::string mine = group->rank() == root ? to_bytes(tensors) : std::string();
  return tensors_from_bytes(broadcast_object(group, mine, root, options));
}

std::vector<std::vector<at::Tensor>> all_gather_object(GroupRef group,
                                                       const std::vector<at::Tensor>& tensors,
                                                       const ObjectOptions& options) {
  return all_from_bytes(all_gather_object(group, to_bytes(tensors), options));
}

std::vector<std::vector<at::Tensor>> gather_objects(GroupRef group,
                                                    const std::vector<at::Tensor>& tensors,
                                                    int root, const ObjectOptions& options) {
  return all_from_bytes(gather_objects(group, to_bytes(tensors), root, options));
}

}  // namespace paceline
