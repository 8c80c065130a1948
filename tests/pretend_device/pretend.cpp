// A pretend accelerator: PyTorch's device PrivateUse1 on host memory, whose kernels are the CPU's.
// It refuses what CUDA refuses: operands on two devices, generators of another device, products of
// integers, and operators without a CUDA kernel in this build of PyTorch.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/NativeFunctions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

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
// The CPU's kernel changes the running statistics, which its schema does not say.
std::tuple<Tensor, Tensor, Tensor> batch_norm(const Tensor& x, const Maybe& w, const Maybe& b, const Maybe& mean,
                                              const Maybe& var, bool training, double momentum, double eps) {
  auto own = [](const Maybe& t) {
    TORCH_CHECK(!t || !t->defined() || there(*t), "Expected all tensors to be on the same device: batch norm");
    return t && t->defined() ? Maybe(seen(*t)) : std::nullopt;
  };
  auto [y, m, v] = at::native_batch_norm(*own(x), own(w), own(b), own(mean), own(var), training, momentum, eps);
  return {moved(y), moved(m), moved(v)};
}

// CUDA takes numbers of the CPU where it works element by element, and the CPU's indices.
void check(const std::string& name, const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> args) {
  auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  bool numbers = op.hasTag(at::Tag::pointwise) || has("_foreach_") || has("fill") || has("where.self");
  bool indices = has("index.Tensor") || has("index_put"), products = has("mm") && !has("int");
  for (size_t i = 0; i < args.size(); ++i) {
    auto info = op.schema().arguments()[i].alias_info();
    args[i].visit([&](const c10::IValue& value) {
      if (!value.isTensor() || !value.toTensor().defined()) return false;
      const Tensor& t = value.toTensor();
      bool whole = at::isIntegralType(t.scalar_type(), true);
      TORCH_CHECK(!there(t) || !products || !whole, name, ": CUDA has no products of integers");
      bool number = t.dim() == 0 && (numbers || t.unsafeGetTensorImpl()->is_wrapped_number());
      TORCH_CHECK(there(t) || (!(info && info->isWrite()) && (number || (indices && i == 1))),
                  "Expected all tensors to be on the same device, but ", name, " found argument ", i, " on ", t.device());
      return false;
    });
  }
  bool kernel = false;
  using Key = c10::DispatchKey;
  for (auto key : {Key::CUDA, Key::CompositeExplicitAutograd, Key::CompositeExplicitAutogradNonFunctional,
                   Key::CompositeImplicitAutograd})
    kernel = kernel || op.hasKernelForDispatchKey(key);
  TORCH_CHECK_NOT_IMPLEMENTED(kernel, name, " has no CUDA kernel");
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  auto size = schema.arguments().size(), start = stack->size() - size;
  check(schema.name() + "." + schema.overload_name(), op, at::ArrayRef<c10::IValue>(stack->data() + start, size));
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
  m.impl("resize_", +[](const Tensor& t, at::SymIntArrayRef size, std::optional<at::MemoryFormat> format) -> const Tensor& {
    return at::native::resize_(t, C10_AS_INTARRAYREF_SLOW(size), format);
  });
  m.impl("set_.source_Storage", +[](Tensor& t, at::Storage from) -> Tensor& { return at::native::set_(t, from); });
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", +[](Tensor& t, const Tensor& from) -> Tensor& { return at::native::set_tensor_(t, from); });
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  for (auto name : {"convolution", "convolution_backward"})  // the composite kernels know no such device
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("native_batch_norm", &batch_norm);
}

TORCH_LIBRARY(pretend, m) {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  m.def("seed(int seed) -> ()", [](int64_t seed) { at::Generator(default_noise()).set_current_seed(seed); });
  m.def("state() -> Tensor", [] { return default_noise().get_state(); });
  m.def("restore(Tensor state) -> ()", [](const Tensor& state) { at::Generator(default_noise()).set_state(state); });
}
