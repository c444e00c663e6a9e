#include "troupe/devices/cuda/kernels/families.hpp"

#include <algorithm>

namespace troupe::cuda {

result<std::unique_ptr<cuda_kernel>> cuda_kernel_table::make(const std::string& op,
                                                             const attributes& attrs,
                                                             chip_services& chip) const {
  const auto at = rows_.find(op);
  if (at == rows_.end())
    return error(error_code::not_found,
                 fmt::format("no CUDA kernel for {}; placed on the host", op));
  return at->second(attrs, chip);
}

std::vector<std::string> cuda_kernel_table::ops() const {
  std::vector<std::string> all;
  for (const auto& [op, make] : rows_) all.push_back(op);
  std::ranges::sort(all);
  return all;
}

cuda_kernel_table make_cuda_kernels() {
  cuda_kernel_table table;
  add_element_kernels(table);
  add_layout_kernels(table);
  add_reduction_kernels(table);
  add_row_kernels(table);
  add_indexing_kernels(table);
  add_pooling_kernels(table);
  add_random_kernels(table);
  add_matmul_kernel(table);
  add_attention_kernels(table);
  add_convolution_kernels(table);
  return table;
}

}  // namespace troupe::cuda
