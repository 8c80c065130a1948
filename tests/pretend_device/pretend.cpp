// A pretend accelerator: PyTorch's device PrivateUse1 on host memory, whose kernels are the CPU's.
// It refuses what CUDA refuses: operands on two devices, generators of another device, products of
// integers, and operators without a CUDA kernel in this build of PyTorch.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <set>

namespace {
using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using Maybe = std::optional<Tensor>;
constexpr auto KIND = c10::DeviceType::PrivateUse1;
const Device HERE(KIND, 0);

struct Memory final : at::Allocator {
  static void release(void* data) { c10::GetDefaultCPUAllocator()->raw_deallocate(data); }
  at::DataPtr allocate(size_t size) override {
    void* data = size ? c10::GetDefaultCPUAllocator()->raw_allocate(size) : nullptr;
    return {data, data, &release, HERE};
  }
  at::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
};
Memory memory;
REGISTER_ALLOCATOR(KIND, &memory);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<KIND> {
  Device exchangeDevice(Device) const override { return HERE; }
  Device getDevice() const override { return HERE; }
  c10::Stream getStream(Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, HERE); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, HERE); }
  void record(void**, const c10::Stream&, DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  void synchronizeDevice(DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// The same seed gives the CPU's numbers.
struct Noise final : at::CPUGeneratorImpl {
  Noise() {
    device_ = HERE;
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};
const at::Generator& default_noise() {
  static at::Generator noise = at::make_generator<Noise>();
  return noise;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override { return default_noise(); }
  at::Generator getNewGenerator(DeviceIndex) const override { return at::make_generator<Noise>(); }
  Device getDeviceFromPtr(void*) const override { return HERE; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    auto fresh = memory.allocate(size);
    if (storage.data()) std::memcpy(fresh.get(), storage.data(), std::min(size, storage.nbytes()));
    const_cast<c10::Storage&>(storage).set_data_ptr_noswap(std::move(fresh));
    const_cast<c10::Storage&>(storage).set_nbytes(size);
  }
};

bool there(const Tensor& t) { return t.device().type() == KIND; }
Tensor moved(const Tensor& t) { return t.defined() ? t.to(HERE) : t; }

// The same memory as the CPU sees it.
Tensor seen(const Tensor& t) {
  if (!there(t)) return t;
  auto data = static_cast<char*>(t.storage().mutable_data()) + t.storage_offset() * t.itemsize();
  auto found = at::from_blob(data, t.sizes(), t.strides(), [t](void*) {}, t.options().device(at::kCPU));
  return t.is_neg() ? found.neg() : found;
}
// An operand of an operator that takes none of the CPU.
Tensor own(const Tensor& t) {
  TORCH_CHECK(there(t), "Expected all tensors to be on the same device, but found one on ", t.device());
  return seen(t);
}
Maybe own(const Maybe& t) { return t && t->defined() ? Maybe(own(*t)) : std::nullopt; }

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<Device>, std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}
Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory,
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}
Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  seen(to).copy_(seen(from));
  return to;
}
Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}
Tensor convolution(const Tensor& x, const Tensor& w, const Maybe& b, at::IntArrayRef stride, at::IntArrayRef padding,
                   at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups) {
  return moved(at::convolution(own(x), own(w), own(b), stride, padding, dilation, transposed, output_padding, groups));
}
std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& x, const Tensor& w, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> mask) {
  std::vector<int64_t> bias{transposed ? w.size(1) * groups : w.size(0)};
  auto [a, b, c] = at::convolution_backward(own(grad), own(x), own(w), bias, stride, padding, dilation, transposed,
                                            output_padding, groups, mask);
  return {moved(a), moved(b), moved(c)};
}
// The CPU's kernel changes the running statistics, which its schema does not say.
std::tuple<Tensor, Tensor, Tensor> batch_norm(const Tensor& x, const Maybe& w, const Maybe& b, const Maybe& mean,
                                              const Maybe& var, bool training, double momentum, double eps) {
  auto [y, m, v] = at::native_batch_norm(own(x), own(w), own(b), own(mean), own(var), training, momentum, eps);
  return {moved(y), moved(m), moved(v)};
}

// What CUDA takes of the CPU beside a tensor of its own: indices, and numbers.
const std::set<std::string> TAKES_CPU_INDICES{"aten::index.Tensor", "aten::index_put_", "aten::_index_put_impl_",
    "aten::index_put", "aten::index.Tensor_out", "aten::_unsafe_index.Tensor"};
const std::set<std::string> TAKES_CPU_NUMBER{"aten::masked_fill_.Tensor", "aten::fill_.Tensor", "aten::index_fill_.int_Tensor",
    "aten::index_fill.int_Tensor", "aten::where.self", "aten::where.self_out"};

void check(const std::string& name, const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> args) {
  bool numbers = op.hasTag(at::Tag::pointwise) || TAKES_CPU_NUMBER.count(name) || name.rfind("aten::_foreach_", 0) == 0;
  bool indices = TAKES_CPU_INDICES.count(name);
  bool products = name.find("mm") != std::string::npos && name.find("int") == std::string::npos;
  for (size_t i = 0; i < args.size(); ++i) {
    auto info = op.schema().arguments()[i].alias_info();
    bool written = info && info->isWrite();
    auto one = [&](const Tensor& t) {
      if (!t.defined()) return;
      if (there(t)) {
        TORCH_CHECK(!products || !at::isIntegralType(t.scalar_type(), true), name, ": CUDA has no products of integers");
        return;
      }
      bool number = t.dim() == 0 && (numbers || t.unsafeGetTensorImpl()->is_wrapped_number());
      TORCH_CHECK(!written && (number || (indices && i > 0)), "Expected all tensors to be on the same device, but ",
                  name, " found argument ", i, " on ", t.device(), " beside one on ", HERE);
    };
    if (args[i].isTensor()) one(args[i].toTensor());
    else if (args[i].isTensorList()) for (const Tensor& t : args[i].toTensorList()) one(t);
    else if (args[i].isOptionalTensorList())
      for (const Maybe& t : args[i].toOptionalTensorList()) if (t) one(*t);
  }
  using Key = c10::DispatchKey;
  bool kernel = false;
  for (auto key : {Key::CUDA, Key::CompositeExplicitAutograd, Key::CompositeExplicitAutogradNonFunctional,
                   Key::CompositeImplicitAutograd})
    kernel = kernel || op.hasKernelForDispatchKey(key);
  TORCH_CHECK_NOT_IMPLEMENTED(kernel || std::getenv("PRETEND_ANY_KERNEL"), name, " has no CUDA kernel");
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  std::string name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  auto size = schema.arguments().size(), start = stack->size() - size;
  check(name, op, at::ArrayRef<c10::IValue>(stack->data() + start, size));
  std::optional<at::Generator> noise, of_cpu;
  for (size_t i = 0; i < size; ++i) {
    auto kind = schema.arguments()[i].type();
    if (auto maybe = kind->cast<c10::OptionalType>()) kind = maybe->getElementType();
    if (kind->kind() != c10::TypeKind::GeneratorType) continue;
    c10::IValue& given = (*stack)[start + i];
    noise = given.isNone() ? default_noise() : given.toGenerator();
    TORCH_CHECK(noise->device().type() == KIND, "Expected a generator of ", HERE, " but found one of ", noise->device());
    of_cpu = at::detail::createCPUGenerator();
    of_cpu->set_state(noise->get_state());
    given = *of_cpu;
  }
  at::native::cpu_fallback(op, stack, true);
  if (noise) noise->set_state(of_cpu->get_state());
}
}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", +[](const Tensor& t, at::SymIntArrayRef size, std::optional<at::MemoryFormat> format) -> const Tensor& {
    return at::native::resize_(t, C10_AS_INTARRAYREF_SLOW(size), format);
  });
  m.impl("set_.source_Storage", +[](Tensor& t, at::Storage from) -> Tensor& { return at::native::set_(t, from); });
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", +[](Tensor& t, const Tensor& from) -> Tensor& { return at::native::set_tensor_(t, from); });
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
  m.impl("native_batch_norm", &batch_norm);
}

TORCH_LIBRARY(pretend, m) {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  m.def("seed(int seed) -> ()", [](int64_t seed) { at::Generator(default_noise()).set_current_seed(seed); });
  m.def("state() -> Tensor", [] { return default_noise().get_state(); });
  m.def("restore(Tensor state) -> ()", [](const Tensor& state) { at::Generator(default_noise()).set_state(state); });
}
