#pragma once
// The little of SQLite that the cache needs, with owners and exceptions. Not thread-safe.
#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace lathe {

class SqliteError : public std::runtime_error {
 public:
  SqliteError(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
  int code() const { return code_; }  // SQLite's primary result code

 private:
  int code_;
};

class SqliteStatement {
 public:
  SqliteStatement(sqlite3* database, const char* sql);
  void bind(int index, const std::string& text);
  void bind(int index, int64_t number);
  void bind(int index, double number);
  bool step();   // true: a row is there
  void reset();  // ready to be bound and run again
  std::string text(int column) const;
  int64_t integer(int column) const;
  double real(int column) const;

 private:
  void check(int code) const;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
};

class SqliteDatabase {
 public:
  SqliteDatabase(const std::string& uri, int flags);
  void execute(const char* sql);
  int64_t query_integer(const char* sql);
  sqlite3* get() const { return database_.get(); }

 private:
  struct Close {
    void operator()(sqlite3* database) const { sqlite3_close_v2(database); }
  };
  std::unique_ptr<sqlite3, Close> database_;
};

}  // namespace lathe
