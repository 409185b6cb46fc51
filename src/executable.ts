// executable.ts - where the one-file executable begins: it is weftd, flanneld or weft by the name by which it is started, and weft by
// any name when that is the first word.

import { basename } from 'node:path'

const [, path = '', ...words] = process.argv
const name = basename(process.argv0)

async function run(): Promise<void> {
  process.noDeprecation = true // these warnings are for developers of Node.js programs; weftd's stderr contains klog lines
  if (name === 'weft' || words[0] === 'weft') {
    process.title = 'weft' // not the name of a daemon
    const { main } = await import('./tool/weft/weft.ts')
    process.exitCode = await main(name === 'weft' ? words : words.slice(1))
    return
  }
  process.title = name === 'flanneld' ? name : 'weftd' // what pidof and pgrep look for
  const { main, end } = await import('./weftd.ts')
  end(await main(path, words, process.env))
}

void run()
