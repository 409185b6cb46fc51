// executable.ts - the entry point of the single-file executable. It runs weftd, flanneld or weft, depending on the name
// by which it was started. If the first argument is `weft`, it runs weft under any name.

import { basename } from 'node:path'

const [, path = '', ...words] = process.argv
const name = basename(process.argv0)

async function run(): Promise<void> {
  process.noDeprecation = true // these warnings are for developers of Node.js programs; weftd's stderr contains klog lines
  if (name === 'weft' || words[0] === 'weft') {
    process.title = 'weft' // so that pidof does not take this process for a daemon
    const { main, end } = await import('./tool/weft/weft.ts')
    end(await main(name === 'weft' ? words : words.slice(1)))
    return
  }
  process.title = name === 'flanneld' ? name : 'weftd' // the name that pidof and pgrep look for
  const { main, end } = await import('./weftd.ts')
  end(await main(path, words, process.env))
}

void run()
