// aead.cc - calls OpenSSL's EVP interface, whose functions are found at run time.
#include "aead.h"

#include <string.h>

#include <algorithm>
#include <utility>

#include "library.h"

namespace weft {

namespace {

// The value of the constant EVP_CTRL_AEAD_GET_TAG in openssl/evp.h; kSetTag is EVP_CTRL_AEAD_SET_TAG.
constexpr int kGetTag = 0x10, kSetTag = 0x11;
constexpr size_t kNonceBytes = 12;

}  // namespace

Key::Key(const uint8_t* bytes) { std::copy_n(bytes, kBytes, bytes_.begin()); }
Key::~Key() { explicit_bzero(bytes_.data(), bytes_.size()); }

/// The functions of openssl/evp.h that this file uses. OpenSSL's opaque types are declared as void.
struct Aead::Library {
  void* (*new_context)();
  void (*free_context)(void*);
  const void* (*cipher)();
  int (*init)(void*, const void*, void*, const unsigned char*, const unsigned char*, int);
  int (*update)(void*, unsigned char*, int*, const unsigned char*, int);
  int (*final)(void*, unsigned char*, int*);
  int (*control)(void*, int, int, void*);

  bool load() {
    return find_in_process(new_context, "EVP_CIPHER_CTX_new") && find_in_process(free_context, "EVP_CIPHER_CTX_free") &&
           find_in_process(cipher, "EVP_chacha20_poly1305") && find_in_process(init, "EVP_CipherInit_ex") &&
           find_in_process(update, "EVP_CipherUpdate") && find_in_process(final, "EVP_CipherFinal_ex") &&
           find_in_process(control, "EVP_CIPHER_CTX_ctrl");
  }
};

Aead::Aead(const Library& library, Way way) : library_(std::make_unique<const Library>(library)), way_(way) {}

Aead::~Aead() { library_->free_context(context_); }

std::unique_ptr<Aead> Aead::create(Way way) {
  Library library;
  if (!library.load()) return nullptr;
  std::unique_ptr<Aead> aead(new Aead(library, way));
  if (!aead->begin() || !aead->knows_answer()) return nullptr;
  return aead;
}

bool Aead::begin() {
  context_ = static_cast<Context*>(library_->new_context());
  if (!context_) return false;
  const int seals = way_ == Way::kSeal ? 1 : 0;
  if (library_->init(context_, library_->cipher(), nullptr, nullptr, nullptr, seals) == 1) return true;
  library_->free_context(std::exchange(context_, nullptr));
  return false;
}

void Aead::forget() {
  // EVP_CIPHER_CTX_free also wipes the key material in the context.
  library_->free_context(std::exchange(context_, nullptr));
  key_number_ = 0;
  begin();
}

void Aead::use(uint64_t number, const Key& key) {
  if (!context_ && !begin()) return;  // OpenSSL had no memory; the next packet tries again
  key_number_ = library_->init(context_, nullptr, nullptr, key.data(), nullptr, -1) == 1 ? number : 0;
}

bool Aead::set_nonce(uint64_t counter) {
  uint8_t nonce[kNonceBytes] = {};
  for (size_t at = 4; at < kNonceBytes; at++, counter >>= 8) nonce[at] = static_cast<uint8_t>(counter);
  return key_number_ != 0 && library_->init(context_, nullptr, nullptr, nullptr, nonce, -1) == 1;
}

bool Aead::seal(uint64_t counter, std::span<uint8_t> bytes) {
  uint8_t* tag = bytes.data() + bytes.size();
  int size = 0;
  return set_nonce(counter) &&
         (bytes.empty() ||
          library_->update(context_, bytes.data(), &size, bytes.data(), static_cast<int>(bytes.size())) == 1) &&
         library_->final(context_, tag, &size) == 1 && library_->control(context_, kGetTag, kTagBytes, tag) == 1;
}

bool Aead::open(uint64_t counter, std::span<uint8_t> bytes) {
  uint8_t* tag = bytes.data() + bytes.size();
  int size = 0;
  uint8_t none;
  return set_nonce(counter) && library_->control(context_, kSetTag, kTagBytes, tag) == 1 &&
         (bytes.empty() ||
          library_->update(context_, bytes.data(), &size, bytes.data(), static_cast<int>(bytes.size())) == 1) &&
         library_->final(context_, &none, &size) == 1;
}

/// Encrypts or decrypts a test vector with the OpenSSL calls that weft uses for packets. Returns true if the result is
/// right.
bool Aead::knows_answer() {
  uint8_t key[Key::kBytes];
  for (size_t at = 0; at < sizeof key; at++) key[at] = static_cast<uint8_t>(at);
  constexpr size_t kBytes = 37;
  static constexpr uint8_t kAnswer[kBytes + kTagBytes] = {
      0xfb, 0x32, 0x95, 0x38, 0xdd, 0x43, 0xc5, 0x73, 0x45, 0xdb, 0xc0, 0x33, 0x22, 0xe4, 0xeb, 0xf4, 0xb1, 0x08,
      0x9d, 0x79, 0x3f, 0x12, 0x1a, 0xd6, 0xbf, 0x19, 0xcb, 0x24, 0x0d, 0x69, 0x5f, 0x27, 0x5c, 0xcf, 0x50, 0x2b,
      0x6c, 0xec, 0x6e, 0x93, 0xda, 0x47, 0xe0, 0x63, 0x43, 0x02, 0xac, 0x3a, 0x39, 0x65, 0x9b, 0x98, 0x57};
  uint8_t plain[kBytes], bytes[sizeof kAnswer] = {};
  for (size_t at = 0; at < kBytes; at++) plain[at] = static_cast<uint8_t>(at + 100);
  use(1, Key(key));
  bool right;
  if (way_ == Way::kSeal) {
    std::copy(std::begin(plain), std::end(plain), bytes);
    right = seal(1, {bytes, kBytes}) && std::equal(std::begin(bytes), std::end(bytes), kAnswer);
  } else {
    std::copy(std::begin(kAnswer), std::end(kAnswer), bytes);
    right = open(1, {bytes, kBytes}) && std::equal(std::begin(plain), std::end(plain), bytes);
    bytes[sizeof kAnswer - 1] ^= 1;
    right = right && !open(1, {bytes, kBytes});
  }
  key_number_ = 0;
  return right;
}

}  // namespace weft
