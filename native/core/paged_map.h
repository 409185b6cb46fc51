// paged_map.h - a hash map that threads read without locks while one thread changes it. The cost of a change hardly
// depends on the map's size.
//
// The hash of a key selects one of 1024 pages. Each page is a small open-addressing table, at most half full, which
// grows and shrinks by itself. A change copies the key's page and the list of pages. So readers of the old list still
// find the old entries, until the old pages are freed (core/peers.h).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace weft {

/// Old pages and lists of pages. New readers cannot find them, but earlier readers may still use them, so they must be
/// freed later.
using Garbage = std::vector<std::unique_ptr<void, void (*)(void*)>>;

/// Hashes a key by multiplying it with the golden ratio. Callers must use the upper bits of the product, because only
/// these depend on all bits of the key. The host bits of a subnet are zero, and so are the lower bits of the product.
constexpr uint64_t hash_of(uint64_t key) { return key * 0x9e3779b97f4a7c15ull; }
constexpr uint64_t hash_of(uint32_t key) { return hash_of(uint64_t{key} << 32); }

/// A map from Key to Value. Key needs a function hash_of(key), of which the map uses the upper bits. `Value{}` means
/// that a key has no entry.
template <typename Key, typename Value>
class PagedMap {
  static constexpr int kPageBits = 10;

 public:
  struct Slot {
    Key key;
    Value value;
  };

  /// The list of pages that readers search. The list does not change after settle().
  class Pages {
   public:
    Value find(const Key& key) const {
      const uint64_t hash = hash_of(key);
      const Page& page = pages_[hash >> (64 - kPageBits)];
      for (size_t at = page.home(hash);; at = (at + 1) & page.mask()) {
        const Slot& slot = page.slots[at];
        if (slot.key == key || slot.value == Value{}) return slot.value;
      }
    }

   private:
    friend class PagedMap;
    struct Page {
      Slot* slots;
      uint32_t used;
      uint8_t shift;  // 64 minus the number of bits of a slot's index
      size_t mask() const { return ~uint64_t{0} >> shift; }
      size_t home(uint64_t hash) const { return hash << kPageBits >> shift; }
    };
    std::array<Page, 1 << kPageBits> pages_;
  };

  PagedMap() : pages_(new Pages) {
    for (Page& page : pages_->pages_) page = new_page(kLeastBits);
  }
  PagedMap(PagedMap&& other) noexcept : pages_(std::exchange(other.pages_, nullptr)), size_(other.size_) {}
  ~PagedMap() {
    if (!pages_) return;
    for (const Page& page : pages_->pages_) delete[] page.slots;
    delete pages_;
  }

  /// The list of pages with all changes so far. After the next settle(), later changes go to a copy of this list.
  const Pages* pages() const { return pages_; }
  size_t size() const { return size_; }
  Value find(const Key& key) const { return pages_->find(key); }

  /// Makes the current pages immutable, so that readers may use them: later changes work on copies.
  void settle() {
    is_own_ = false;
    own_.reset();
  }

  /// Sets the value of a key, or removes the key if `value` is Value{}. Adds the replaced pages to `garbage`.
  void put(const Key& key, Value value, Garbage& garbage) {
    const uint64_t hash = hash_of(key);
    Page& page = own_page(hash >> (64 - kPageBits), garbage);
    size_t at = page.home(hash);
    while (page.slots[at].value != Value{} && !(page.slots[at].key == key)) at = (at + 1) & page.mask();
    const bool was_there = page.slots[at].value != Value{};
    if (value == Value{}) {
      if (was_there) remove(page, at);
      return;
    }
    page.slots[at] = {key, value};
    if (was_there) return;
    page.used++;
    size_++;
    // No reader has this page yet, because it is a new copy. So the page can be deleted as soon as a larger copy
    // replaces it.
    if (page.used > (page.mask() + 1) / 2) delete[] std::exchange(page, copy(page)).slots;
  }

  template <typename Each>
  void for_each(Each each) const {
    for (const Page& page : pages_->pages_) {
      for (size_t at = 0; at <= page.mask(); at++) {
        if (page.slots[at].value != Value{}) each(page.slots[at].key, page.slots[at].value);
      }
    }
  }

  /// Returns the length of the longest run of occupied slots, which bounds the cost of a look-up.
  size_t longest_run() const {
    size_t longest = 0;
    for (const Page& page : pages_->pages_) {
      size_t run = 0;
      // Scan the page twice, because a run of occupied slots at the end of the page continues at its beginning.
      for (size_t at = 0; at <= 2 * page.mask() + 1; at++) {
        run = page.slots[at & page.mask()].value == Value{} ? 0 : run + 1;
        longest = std::max(longest, run);
      }
    }
    return longest;
  }

 private:
  using Page = typename Pages::Page;
  static constexpr int kLeastBits = 1;

  static Page new_page(int bits) { return {new Slot[size_t{1} << bits](), 0, static_cast<uint8_t>(64 - bits)}; }

  /// Copies a page into a new page that has space for one more entry, and is not much larger than needed.
  static Page copy(const Page& from) {
    const int wanted = std::bit_width(2 * from.used + 1);
    const int has = 64 - from.shift;
    Page to = new_page(wanted > has || wanted + 1 < has ? wanted : has);
    to.used = from.used;
    for (size_t at = 0; at <= from.mask(); at++) {
      const Slot& slot = from.slots[at];
      if (slot.value == Value{}) continue;
      size_t place = to.home(hash_of(slot.key));
      while (to.slots[place].value != Value{}) place = (place + 1) & to.mask();
      to.slots[place] = slot;
    }
    return to;
  }

  Page& own_page(size_t index, Garbage& garbage) {
    if (!is_own_) {
      garbage.push_back({pages_, [](void* old) { delete static_cast<Pages*>(old); }});
      pages_ = new Pages(*pages_);
      is_own_ = true;
    }
    Page& page = pages_->pages_[index];
    if (!own_[index]) {
      garbage.push_back({page.slots, [](void* old) { delete[] static_cast<Slot*>(old); }});
      page = copy(page);
      own_[index] = true;
    }
    return page;
  }

  /// Empties slot `hole`, and moves up the later entries that a look-up would no longer find (Knuth, The Art of
  /// Computer Programming, volume 3, section 6.4, algorithm R).
  void remove(Page& page, size_t hole) {
    for (size_t at = (hole + 1) & page.mask(); page.slots[at].value != Value{}; at = (at + 1) & page.mask()) {
      const size_t home = page.home(hash_of(page.slots[at].key));
      if (((at - home) & page.mask()) < ((at - hole) & page.mask())) continue;
      page.slots[hole] = page.slots[at];
      hole = at;
    }
    page.slots[hole] = {};
    page.used--;
    size_--;
  }

  Pages* pages_;
  bool is_own_ = false;              // true if pages_ is a copy that no reader has
  std::bitset<1 << kPageBits> own_;  // the pages that are copies that no reader has
  size_t size_ = 0;
};

}  // namespace weft
