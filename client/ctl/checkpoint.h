// `ballastctl checkpoint`: save asks a daemon, the others look at files and
// need none.
//
// Threading: one thread; blocks.
#ifndef CLIENT_CTL_CHECKPOINT_H_
#define CLIENT_CTL_CHECKPOINT_H_

#include <string>

#include "client/ctl/commands.h"

namespace ballast::ctl {

// All snapshots below `directory`, a daemon's snapshots.directory.
Result CheckpointList(const Options& options, const std::string& directory);

// Reads every byte of the snapshot in the directory `path`. kFailed says what
// is damaged.
Result CheckpointVerify(const Options& options, const std::string& path);

// Writes the new file `out`: the weights in their dtype, or with `whole_state`
// the masters and moments too.
Result CheckpointExport(const Options& options, const std::string& path,
                        const std::string& out, bool whole_state);

}  // namespace ballast::ctl

#endif  // CLIENT_CTL_CHECKPOINT_H_
